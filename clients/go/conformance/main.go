// The driver of the Go client for the conformance kit: it plays the kit's scenarios against a
// live server with this client. The kit's README says what scenarios and drivers are.
//
//	go run ./conformance --target 127.0.0.1:7480 ../../conformance/scenarios
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

type names []string

func (n *names) String() string         { return strings.Join(*n, ", ") }
func (n *names) Set(value string) error { *n = append(*n, value); return nil }

func main() {
	var only names
	target := flag.String("target", "", "where the server is, HOST:PORT")
	jobs := flag.Int("jobs", 8, "scenarios at once")
	junit := flag.String("junit", "", "write JUnit's XML to this file")
	flag.Var(&only, "only", "play the scenario of this name alone")
	flag.Parse()
	if *target == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	failed, err := drive(*target, flag.Args(), only, *jobs, *junit)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

func drive(target string, files, only []string, jobs int, junit string) (failed bool, err error) {
	scenarios, err := load(files)
	if err != nil {
		return false, err
	}
	if only != nil {
		scenarios = slices.DeleteFunc(scenarios, func(one *scenario) bool {
			return !slices.Contains(only, one.Name)
		})
	}
	if len(scenarios) == 0 {
		return false, fmt.Errorf("there is no such scenario")
	}
	results, err := playAll(target, scenarios, jobs)
	if err != nil {
		return false, err
	}
	writeTable(os.Stdout, results)
	if junit != "" {
		err = writeJUnit(junit, results)
	}
	return slices.ContainsFunc(results, func(one result) bool { return one.failure != "" }), err
}

// playAll plays scenarios, some beside each other.
func playAll(target string, scenarios []*scenario, jobs int) ([]result, error) {
	client, err := connect(target)
	if err != nil {
		return nil, err
	}
	defer client.close()
	info, err := client.client.Server.GetServerInfo(
		context.Background(), &runlanev1.GetServerInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s does not say what it is: %w", target, err)
	}
	results := make([]result, len(scenarios))
	room := make(chan struct{}, max(jobs, 1))
	var work sync.WaitGroup
	for place, one := range scenarios {
		results[place] = result{name: one.Name, file: one.file}
		lacking := slices.DeleteFunc(slices.Clone(one.Needs), func(feature string) bool {
			return slices.Contains(info.Features, feature)
		})
		if len(lacking) > 0 {
			results[place].skipped = "the server lacks " + strings.Join(lacking, ", ")
			continue
		}
		work.Add(1)
		room <- struct{}{}
		go func() {
			defer work.Done()
			defer func() { <-room }()
			began := time.Now()
			if err := play(one, func() (*binding, error) { return connect(target) }); err != nil {
				results[place].failure = err.Error()
			}
			results[place].took = time.Since(began)
		}()
	}
	work.Wait()
	return results, nil
}
