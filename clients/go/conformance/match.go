package main

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// missing stands where nothing does.
type missing struct{}

// mismatch returns why a value does not fit its pattern; empty where it does. captures gets what
// $as asks for, and is to be thrown away where it does not fit.
func mismatch(pattern, value any, captures object, path string) string {
	where := path
	if where == "" {
		where = "it"
	}
	if matcher, ok := pattern.(object); ok && isMatcher(matcher) {
		return matched(matcher, value, captures, path, where)
	}
	if _, absent := value.(missing); absent {
		return fmt.Sprintf("%s is absent, expected %s", where, short(pattern))
	}
	switch pattern := pattern.(type) {
	case object:
		fields, ok := value.(object)
		if !ok {
			return fmt.Sprintf("%s is %s, expected an object", where, short(value))
		}
		for key, inner := range pattern {
			if why := mismatch(inner, field(fields, key), captures, join(path, key)); why != "" {
				return why
			}
		}
		return ""
	case []any:
		return mismatchedList(pattern, value, captures, path, where)
	}
	if pattern != value {
		return fmt.Sprintf("%s is %s, expected %s", where, short(value), short(pattern))
	}
	return ""
}

func isMatcher(pattern object) bool {
	for key := range pattern {
		if strings.HasPrefix(key, "$") {
			return true
		}
	}
	return false
}

func field(fields object, key string) any {
	if value, there := fields[key]; there {
		return value
	}
	return missing{}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func mismatchedList(pattern []any, value any, captures object, path, where string) string {
	items, ok := value.([]any)
	if !ok {
		return fmt.Sprintf("%s is %s, expected a list", where, short(value))
	}
	for place, inner := range pattern {
		var item any = missing{}
		if place < len(items) {
			item = items[place]
		}
		if why := mismatch(inner, item, captures, fmt.Sprintf("%s[%d]", path, place)); why != "" {
			return why
		}
	}
	if len(items) > len(pattern) {
		return fmt.Sprintf("%s[%d] is too many: %s", where, len(pattern), short(items[len(pattern)]))
	}
	return ""
}

func matched(matcher object, value any, captures object, path, where string) string {
	_, absent := value.(missing)
	if matcher["$absent"] == true {
		if absent {
			return ""
		}
		return fmt.Sprintf("%s is %s, expected none", where, short(value))
	}
	if other, ok := matcher["$not"]; ok {
		if mismatch(other, value, object{}, path) != "" {
			return ""
		}
		return fmt.Sprintf("%s is %s, expected another", where, short(value))
	}
	if absent {
		return where + " is absent"
	}
	for key, told := range matcher {
		if why := ruled(key, told, value, captures, path, where); why != "" {
			return why
		}
	}
	if name, ok := matcher["$as"].(string); ok {
		captures[name] = value
	}
	return ""
}

func ruled(key string, told, value any, captures object, path, where string) string {
	fits, expected := true, ""
	items, isList := value.([]any)
	switch key {
	case "$as", "$any":
	case "$is":
		return mismatch(told, value, captures, path)
	case "$regex":
		text, ok := value.(string)
		fits = ok && regexp.MustCompile(told.(string)).MatchString(text)
		expected = fmt.Sprintf("/%s/", told)
	case "$length":
		fits = isList && len(items) == int(number(told))
		expected = fmt.Sprintf("%v items", told)
	case "$min":
		fits, expected = number(value) >= number(told), fmt.Sprintf("at least %v", told)
	case "$max":
		fits, expected = number(value) <= number(told), fmt.Sprintf("at most %v", told)
	case "$contains":
		fits = isList && contains(told.([]any), items, captures)
		expected = "in this order " + short(told)
	case "$unordered":
		wanted := told.([]any)
		fits = isList && len(items) == len(wanted) && unordered(wanted, items, captures)
		expected = "in any order " + short(told)
	default:
		return fmt.Sprintf("%s: there is no matcher %s", where, key)
	}
	if fits {
		return ""
	}
	return fmt.Sprintf("%s is %s, expected %s", where, short(value), expected)
}

func contains(wanted, items []any, captures object) bool {
	for _, inner := range wanted {
		found := false
		for len(items) > 0 && !found {
			trial := object{}
			if found = mismatch(inner, items[0], trial, "") == ""; found {
				maps.Copy(captures, trial)
			}
			items = items[1:]
		}
		if !found {
			return false
		}
	}
	return true
}

func unordered(wanted, items []any, captures object) bool {
	taken := make([]bool, len(items))
	for _, inner := range wanted {
		found := false
		for place, item := range items {
			trial := object{}
			if taken[place] || mismatch(inner, item, trial, "") != "" {
				continue
			}
			maps.Copy(captures, trial)
			taken[place], found = true, true
			break
		}
		if !found {
			return false
		}
	}
	return true
}
