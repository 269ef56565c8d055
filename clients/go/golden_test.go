package runlane

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/runlane/runlane/clients/go/internal/liveserver"
	"github.com/runlane/runlane/clients/go/runlanev1"
)

// golden reads what must not change, as the conformance kit keeps it.
func golden(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(liveserver.Root(), "conformance/golden", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func TestGoldenMessagesAreReadAndWritten(t *testing.T) {
	var cases []struct {
		Name, Message, Binary string
		JSON                  any
	}
	golden(t, "wire.json", &cases)
	for _, one := range cases {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(one.Message))
		if err != nil {
			t.Fatal(err)
		}
		data, err := base64.StdEncoding.DecodeString(one.Binary)
		if err != nil {
			t.Fatal(err)
		}
		read := kind.New().Interface()
		if err := proto.Unmarshal(data, read); err != nil {
			t.Errorf("%s: %v", one.Name, err)
			continue
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(read)
		if err != nil {
			t.Errorf("%s: %v", one.Name, err)
			continue
		}
		var made any
		if err := json.Unmarshal(text, &made); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(made, one.JSON) {
			t.Errorf("%s is read as %s", one.Name, text)
		}
		// What is written again holds the same, fields that are not known too.
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(read)
		if err != nil || len(again) != len(data) {
			t.Errorf("%s: %d bytes became %d, %v", one.Name, len(data), len(again), err)
		}
		back := kind.New().Interface()
		if err := proto.Unmarshal(again, back); err != nil || !proto.Equal(read, back) {
			t.Errorf("%s is written as another: %v", one.Name, err)
		}
	}
}

func TestGoldenReasonsAreThoseOfTheClient(t *testing.T) {
	var reasons map[Reason]struct {
		Number int32
		Code   string
	}
	golden(t, "reasons.json", &reasons)
	if len(reasons) != len(allReasons) {
		t.Errorf("%d reasons, and %d here", len(reasons), len(allReasons))
	}
	for _, reason := range allReasons {
		if number := runlanev1.ErrorReason_value["ERROR_REASON_"+string(reason)]; number == 0 ||
			number != reasons[reason].Number {
			t.Errorf("%s has number %d", reason, number)
		}
	}
}

func TestTheTableOfCallsIsThatOfTheContract(t *testing.T) {
	data := must[[]byte](t)(os.ReadFile(filepath.Join(liveserver.Root(), "proto/calls.json")))
	var told callTable
	if err := json.Unmarshal(data, &told); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(calls, &told) {
		t.Error("the copy is not as proto/calls.json: run make gen")
	}
	rows := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("runlane.v1", func(
		file protoreflect.FileDescriptor,
	) bool {
		for place := range file.Services().Len() {
			methods := file.Services().Get(place).Methods()
			for each := range methods.Len() {
				rows++
				checkRow(t, methods.Get(each))
			}
		}
		return true
	})
	if rows != len(calls.Methods) {
		t.Errorf("%d methods, and %d rows", rows, len(calls.Methods))
	}
}

func checkRow(t *testing.T, method protoreflect.MethodDescriptor) {
	t.Helper()
	name := string(method.Parent().FullName()) + "/" + string(method.Name())
	row := calls.Methods[name]
	fields := method.Input().Fields()
	deadline := "call"
	if method.IsStreamingClient() || method.IsStreamingServer() {
		deadline = "stream"
	} else if fields.ByName("wait_duration") != nil {
		deadline = "wait"
	}
	if row.Deadline != deadline {
		t.Errorf("%s: deadline %q, not %q", name, row.Deadline, deadline)
	}
	if deadline != "stream" && (row.Repeat == "request_id") != (fields.ByName("request_id") != nil) {
		t.Errorf("%s: repeat %q, and its request id is another matter", name, row.Repeat)
	}
}

func TestGoldenMetadataIsWhatIsSentAndRead(t *testing.T) {
	var told struct {
		Domain             string `json:"error_domain"`
		Requests, Trailers map[string]string
	}
	golden(t, "metadata.json", &told)
	key := "k"
	pairs, err := (&settings{apiKey: &key, namespace: "n", name: "m"}).callMetadata("localhost:1")
	if err != nil || len(pairs) != 2*len(told.Requests) {
		t.Fatalf("%q %v", pairs, err)
	}
	for place := 0; place < len(pairs); place += 2 {
		if _, known := told.Requests[pairs[place]]; !known {
			t.Errorf("%s is sent", pairs[place])
		}
	}
	if _, known := told.Trailers[pushbackKey]; !known || told.Domain != errorDomain {
		t.Errorf("%+v", told)
	}
}
