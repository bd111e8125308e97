package aws

import (
	"path"
	"slices"
	"strconv"
	"strings"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// property is what a filter of EC2 compares: the values that a thing has under a filter's name, of which one has to match. False says that there is no
// such filter.
type property func(filter string) (values []string, ok bool)

// matches says whether a thing passes all filters. In values, * and ? stand for any characters and any one.
func matches(filters []ec2types.Filter, of property) (bool, error) {
	for _, f := range filters {
		name := value(f.Name)
		have, ok := of(name)
		if !ok {
			return false, badRequest("InvalidParameterValue", "The filter '"+name+"' is invalid")
		}
		if !slices.ContainsFunc(f.Values, func(want string) bool {
			return slices.ContainsFunc(have, func(got string) bool { return like(want, got) })
		}) {
			return false, nil
		}
	}
	return true, nil
}

func like(pattern, text string) bool {
	// The slashes of names mean nothing to EC2, and brackets are themselves.
	pattern = strings.NewReplacer("/", "|", "[", `\[`, "]", `\]`).Replace(pattern)
	ok, err := path.Match(pattern, strings.ReplaceAll(text, "/", "|"))
	return err == nil && ok
}

// selected are the things that pass filters.
func selected[T any](all []T, filters []ec2types.Filter, of func(T) property) ([]T, error) {
	var out []T
	for _, thing := range all {
		ok, err := matches(filters, of(thing))
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, thing)
		}
	}
	return out, nil
}

// tagged adds to a property the filters that everything with tags has.
func tagged(tags map[string]string, of property) property {
	return func(filter string) ([]string, bool) {
		if key, ok := strings.CutPrefix(filter, "tag:"); ok {
			v, has := tags[key]
			if !has {
				return nil, true
			}
			return []string{v}, true
		}
		if filter == "tag-key" {
			var keys []string
			for key := range tags {
				keys = append(keys, key)
			}
			return keys, true
		}
		return of(filter)
	}
}

// fields makes a property of fixed filters.
func fields(values map[string][]string) property {
	return func(filter string) ([]string, bool) {
		v, ok := values[filter]
		return v, ok
	}
}

// page is one of a list: at most as many as the caller wants and never more than the service gives, and the token for the next. EC2, too, gives fewer than it is
// asked for: who does not ask for the next page does not see everything.
func page[T any](all []T, wanted *int32, most int, token *string) ([]T, *string, error) {
	if wanted != nil && *wanted > 0 {
		most = min(most, int(*wanted))
	}
	first := 0
	if value(token) != "" {
		n, err := strconv.Atoi(*token)
		if err != nil || n < 0 || n > len(all) {
			return nil, nil, badRequest("InvalidNextToken", "The token '"+*token+"' is invalid")
		}
		first = n
	}
	if first+most >= len(all) {
		return all[first:], nil, nil
	}
	next := strconv.Itoa(first + most)
	return all[first : first+most], &next, nil
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func tagsOf(tags []ec2types.Tag) map[string]string {
	m := map[string]string{}
	for _, t := range tags {
		m[value(t.Key)] = value(t.Value)
	}
	return m
}

func tagList(tags map[string]string) []ec2types.Tag {
	list := []ec2types.Tag{}
	for _, key := range sortedKeys(tags) {
		v := tags[key]
		list = append(list, ec2types.Tag{Key: &key, Value: &v})
	}
	return list
}
