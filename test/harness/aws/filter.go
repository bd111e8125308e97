package aws

import (
	"path"
	"slices"
	"strconv"
	"strings"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// property returns the values of an object for an EC2 filter. One of them must match. It returns false if there is no such filter.
type property func(filter string) (values []string, ok bool)

// matches reports whether an object passes all filters. In filter values, * matches any characters and ? matches one.
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
	// path.Match treats slashes and brackets specially, EC2 does not.
	pattern = strings.NewReplacer("/", "|", "[", `\[`, "]", `\]`).Replace(pattern)
	ok, err := path.Match(pattern, strings.ReplaceAll(text, "/", "|"))
	return err == nil && ok
}

// selected returns the objects that pass the filters.
func selected[T any](all []T, filters []ec2types.Filter, of func(T) property) ([]T, error) {
	var out []T
	for _, object := range all {
		ok, err := matches(filters, of(object))
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, object)
		}
	}
	return out, nil
}

// tagged adds to a property the filters of everything that has tags.
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

// fields returns a property with a fixed set of filters.
func fields(values map[string][]string) property {
	return func(filter string) ([]string, bool) {
		v, ok := values[filter]
		return v, ok
	}
}

// page returns one page of a list and the token of the next. A page has at most as many items as the caller wants and as the service returns. EC2 too
// returns fewer items than requested, so a client that does not ask for the next page misses some.
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
