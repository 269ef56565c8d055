package runlane

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheExampleOfTheReadmeRuns(t *testing.T) {
	address := liveAddress(t)
	program := filepath.Join(t.TempDir(), "first")
	if out, err := exec.Command("go", "build", "-o", program, "./examples/first").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	command := exec.CommandContext(within(t), program, address)
	command.Env = []string{}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{
		"ROLE_USER to be or not to be", "ROLE_TOOL 6", "ROLE_ASSISTANT That has 6 words.",
		"nothing runs: true", "the fork: That has 4 words.",
	} {
		if !strings.Contains(string(out), line+"\n") {
			t.Errorf("it does not say %q:\n%s", line, out)
		}
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("examples/first/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(code)+"```\n") {
		t.Error("README.md does not show examples/first/main.go as it is")
	}
}
