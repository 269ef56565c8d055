package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A result is what came of one scenario.
type result struct {
	name, file string
	took       time.Duration
	// failure is what was wrong, skipped why it was not played; both empty: it passed.
	failure, skipped string
}

func (r result) word() string {
	switch {
	case r.failure != "":
		return "FAILED"
	case r.skipped != "":
		return "skipped"
	}
	return "ok"
}

// writeTable writes the results as lines, failures told below.
func writeTable(out io.Writer, results []result) {
	counts := map[string]int{}
	for _, one := range results {
		counts[one.word()]++
		fmt.Fprintf(out, "%-8s%-64s  %6.2f s\n", one.word(), one.name, one.took.Seconds())
	}
	for _, one := range results {
		if one.failure != "" {
			fmt.Fprintf(out, "\n%s (%s)\n  %s\n", one.name, one.file, one.failure)
		}
	}
	fmt.Fprintf(out, "\n%d ok, %d failed, %d skipped\n",
		counts["ok"], counts["FAILED"], counts["skipped"])
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitFailure `xml:"failure"`
	Skipped *junitSkip    `xml:"skipped"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type junitSkip struct {
	Message string `xml:"message,attr"`
}

// writeJUnit writes the results as JUnit's XML.
func writeJUnit(path string, results []result) error {
	suite := junitSuite{Name: "conformance.go", Tests: len(results)}
	for _, one := range results {
		made := junitCase{
			Class: one.file, Name: one.name, Time: fmt.Sprintf("%.3f", one.took.Seconds()),
		}
		if one.failure != "" {
			suite.Failures++
			first := strings.ToValidUTF8(one.failure[:min(len(one.failure), 200)], "")
			made.Failure = &junitFailure{first, one.failure}
		}
		if one.skipped != "" {
			suite.Skipped++
			made.Skipped = &junitSkip{one.skipped}
		}
		suite.Cases = append(suite.Cases, made)
	}
	data, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(xml.Header), data...), 0o644)
}
