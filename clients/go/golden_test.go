package runlane

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
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

func TestGoldenCallsAreThoseOfTheTable(t *testing.T) {
	var told struct {
		First   float64 `json:"first_delay_ms"`
		Longest float64 `json:"longest_delay_ms"`
		Stream  float64 `json:"stream_deadline_ms"`
		Silence float64 `json:"stream_silence_ms"`
		Unary   map[string]struct {
			Waits     bool     `json:"adds_wait_duration"`
			Attempt   *float64 `json:"attempt_timeout_ms"`
			RequestID bool     `json:"has_request_id"`
		}
	}
	golden(t, "calls.json", &told)
	if told.First != 1000*calls.Backoff.FirstSeconds || told.Stream != 1000*calls.StreamSeconds ||
		told.Longest != 1000*calls.Backoff.LongestSeconds ||
		told.Silence != float64(streamSilence.Milliseconds()) {
		t.Errorf("%+v", told)
	}
	unary := 0
	for method, row := range calls.Methods {
		if row.Deadline == "stream" {
			continue
		}
		unary++
		want, known := told.Unary[method[strings.Index(method, "/")+1:]]
		var attempt float64
		if want.Attempt != nil {
			attempt = *want.Attempt
		}
		if !known || want.Waits != (row.Deadline == "wait") || attempt != 1000*row.AttemptSeconds ||
			want.RequestID != (row.Repeat == "request_id") {
			t.Errorf("%s: %+v, and here %+v", method, want, row)
		}
	}
	if unary != len(told.Unary) {
		t.Errorf("%d unary methods, and %d here", len(told.Unary), unary)
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
