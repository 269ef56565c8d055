package main

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/runlane/runlane/clients/go/internal/liveserver"
)

var scenarioFolder = filepath.Join(liveserver.Root(), "conformance/scenarios")

func startServer(t *testing.T) string {
	t.Helper()
	liveserver.Need(t)
	server, err := liveserver.Start(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	return server.Address
}

func played(t *testing.T, target string, only ...string) (failed []string, told []string) {
	t.Helper()
	scenarios, err := load([]string{scenarioFolder})
	if err != nil {
		t.Fatal(err)
	}
	if only != nil {
		scenarios = slices.DeleteFunc(scenarios, func(one *scenario) bool {
			return !slices.Contains(only, one.Name)
		})
		if len(scenarios) != len(only) {
			t.Fatalf("there are %d scenarios of %v", len(scenarios), only)
		}
	}
	results, err := playAll(target, scenarios, 16)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range results {
		if one.skipped != "" {
			t.Errorf("%s was skipped: %s", one.name, one.skipped)
		}
		if one.failure != "" {
			failed = append(failed, one.name)
			told = append(told, one.name+": "+one.failure)
		}
	}
	return failed, told
}

func TestAllScenariosPass(t *testing.T) {
	t.Parallel()
	if _, told := played(t, startServer(t)); told != nil {
		t.Errorf("%q", told)
	}
}

// What shows each fault; more may.
var shownBy = map[string]string{
	"event_left_out":      "a_steer_is_delivered_at_the_final_answer",
	"order_swapped":       "a_steer_is_delivered_at_the_final_answer",
	"piece_after_message": "pieces_of_an_answer_come_before_their_message",
	"input_doubled":       "a_steer_is_delivered_at_the_final_answer",
	"request_id_ignored":  "a_request_id_gives_its_first_answer_again",
	"reason_changed":      "a_race_for_the_lane_has_one_winner",
	"field_unnamed":       "wrong_requests_name_the_wrong_field",
	"stale_accepted":      "a_fence_is_dead_after_the_end",
	"page_item_lost":      "a_fork_has_the_prefix_and_leaves_its_source_alone",
	"astral_lost":         "pieces_of_an_answer_come_before_their_message",
	"number_rounded":      "arguments_are_handed_on_byte_for_byte",
}

func TestAPlantedFaultIsFound(t *testing.T) {
	t.Parallel()
	address := startServer(t)
	for fault, scenario := range shownBy {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			proxy, err := liveserver.Proxy(t.TempDir(), address, fault)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Kill)
			if failed, _ := played(t, proxy.Address, scenario); len(failed) != 1 {
				t.Errorf("%s does not show it", scenario)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		proxy, err := liveserver.Proxy(t.TempDir(), address, "none")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Kill)
		var all []string
		for _, scenario := range shownBy {
			if !slices.Contains(all, scenario) {
				all = append(all, scenario)
			}
		}
		if _, told := played(t, proxy.Address, all...); told != nil {
			t.Errorf("%q", told)
		}
	})
}

func TestTheReportCountsWhatCame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	err := writeJUnit(path, []result{
		{name: "good", file: "a.json"},
		{name: "bad", file: "a.json", failure: "step 1 (call Submit): it broke <&>"},
		{name: "other", file: "a.json", skipped: "the server lacks x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var suite junitSuite
	if err := xml.Unmarshal(data, &suite); err != nil {
		t.Fatal(err)
	}
	if suite.Tests != 3 || suite.Failures != 1 || suite.Skipped != 1 || len(suite.Cases) != 3 ||
		suite.Cases[1].Failure.Text != "step 1 (call Submit): it broke <&>" {
		t.Fatalf("%s", data)
	}
}

func TestMatchersFitWhatTheySay(t *testing.T) {
	list := []any{"a", "b", object{"c": 1.0}}
	for name, one := range map[string]struct {
		pattern, value any
		fits           bool
	}{
		"equal":                {object{"a": "x"}, object{"a": "x", "b": "y"}, true},
		"another":              {object{"a": "x"}, object{"a": "y"}, false},
		"absent":               {object{"a": object{"$absent": true}}, object{}, true},
		"there":                {object{"a": object{"$absent": true}}, object{"a": "x"}, false},
		"not":                  {object{"a": object{"$not": "x"}}, object{"a": "y"}, true},
		"not, absent":          {object{"a": object{"$not": "x"}}, object{}, true},
		"a number as a string": {object{"$min": 3.0, "$max": 3.0}, "3", true},
		"too small":            {object{"$min": 4.0}, 3.0, false},
		"regex":                {object{"$regex": "^run_"}, "run_1", true},
		"contains in order":    {object{"$contains": []any{"a", object{"c": 1.0}}}, list, true},
		"out of order":         {object{"$contains": []any{object{"c": 1.0}, "a"}}, list, false},
		"in any order":         {object{"$unordered": []any{object{"c": 1.0}, "b", "a"}}, list, true},
		"too few":              {object{"$unordered": []any{"b", "a"}}, list, false},
		"length":               {object{"$length": 3.0}, list, true},
		"a list of another":    {[]any{"a", "b"}, list, false},
		"a matcher not known":  {object{"$odd": true}, "x", false},
	} {
		if why := mismatch(one.pattern, one.value, object{}, ""); (why == "") != one.fits {
			t.Errorf("%s: %q", name, why)
		}
	}
	captures := object{}
	if mismatch(object{"$as": "x", "$is": object{"a": object{"$as": "y"}}},
		object{"a": "z"}, captures, "") != "" || captures["y"] != "z" || captures["x"] == nil {
		t.Errorf("captures %v", captures)
	}
}
