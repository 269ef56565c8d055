package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// An object is a JSON object.
type object = map[string]any

// A scenario is one of a file.
type scenario struct {
	Name  string   `json:"name"`
	IDs   []string `json:"ids"`
	Needs []string `json:"needs"`
	Steps []object `json:"steps"`

	file   string
	shared map[string]sharedSteps
}

type sharedSteps struct {
	Defaults object   `json:"defaults"`
	Steps    []object `json:"steps"`
}

// load reads the scenarios of files, in order; a folder stands for the .json files in it.
func load(paths []string) ([]*scenario, error) {
	var found []*scenario
	for _, path := range paths {
		about, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		files := []string{path}
		if about.IsDir() {
			// Sorted by name.
			if files, err = filepath.Glob(filepath.Join(path, "*.json")); err != nil {
				return nil, err
			}
		}
		for _, file := range files {
			read, err := loadFile(file)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			found = append(found, read...)
		}
	}
	return found, nil
}

func loadFile(path string) ([]*scenario, error) {
	var content struct {
		Shared    string      `json:"shared"`
		Scenarios []*scenario `json:"scenarios"`
	}
	if err := readJSON(path, &content); err != nil {
		return nil, err
	}
	shared := map[string]sharedSteps{}
	if content.Shared != "" {
		if err := readJSON(filepath.Join(filepath.Dir(path), content.Shared), &shared); err != nil {
			return nil, err
		}
	}
	for _, one := range content.Scenarios {
		one.file, one.shared = filepath.Base(path), shared
	}
	return content.Scenarios, nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

var nameMark = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_.]*)\}`)

// filled returns a value with its names replaced by what they stand for.
func filled(value any, scope object) (any, error) {
	switch value := value.(type) {
	case string:
		return filledText(value, scope)
	case []any:
		made := make([]any, len(value))
		for place, item := range value {
			var err error
			if made[place], err = filled(item, scope); err != nil {
				return nil, err
			}
		}
		return made, nil
	case object:
		if piece, long := value["$repeat"]; long {
			text, err := filled(piece, scope)
			if err != nil {
				return nil, err
			}
			return strings.Repeat(textOf(text), int(number(value["$times"]))), nil
		}
		made := object{}
		for key, item := range value {
			var err error
			if made[key], err = filled(item, scope); err != nil {
				return nil, err
			}
		}
		return made, nil
	}
	return value, nil
}

func filledText(text string, scope object) (any, error) {
	marks := nameMark.FindAllStringSubmatchIndex(text, -1)
	if len(marks) == 1 && marks[0][0] == 0 && marks[0][1] == len(text) {
		return lookedUp(text[marks[0][2]:marks[0][3]], scope)
	}
	var made strings.Builder
	last := 0
	for _, mark := range marks {
		value, err := lookedUp(text[mark[2]:mark[3]], scope)
		if err != nil {
			return nil, err
		}
		made.WriteString(text[last:mark[0]])
		made.WriteString(textOf(value))
		last = mark[1]
	}
	made.WriteString(text[last:])
	return made.String(), nil
}

func lookedUp(name string, scope object) (any, error) {
	var found any = scope
	for _, part := range strings.Split(name, ".") {
		fields, ok := found.(object)
		if !ok {
			return nil, fmt.Errorf("nothing is known by the name %q", name)
		}
		if found, ok = fields[part]; !ok {
			return nil, fmt.Errorf("nothing is known by the name %q", name)
		}
	}
	return found, nil
}

func textOf(value any) string {
	if count, ok := value.(float64); ok {
		return strconv.FormatFloat(count, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// number reads a number, or an int64 that is written as a string.
func number(value any) float64 {
	switch value := value.(type) {
	case float64:
		return value
	case string:
		count, err := strconv.ParseFloat(value, 64)
		if err == nil {
			return count
		}
	}
	return 0
}

// with returns a scope with more in it.
func with(scope object, more object) object {
	made := maps.Clone(scope)
	maps.Copy(made, more)
	return made
}

// short writes a value for people.
func short(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	if len(data) > 600 {
		return fmt.Sprintf("%s... (%d bytes)", data[:600], len(data))
	}
	return string(data)
}
