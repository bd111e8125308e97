package main

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"karve.sh/karve/pkg/words"
)

// refusal matches an API server's message about a request for which the user has no right.
var refusal = regexp.MustCompile(`cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]*)")?`)

// missingRights returns a clause that names the missing rights, or "" if the error also has another cause.
func missingRights(err error) string {
	resources := map[string][]string{}
	for _, e := range parts(err) {
		m := refusal.FindStringSubmatch(e.Error())
		if m == nil || !apierrors.IsForbidden(e) {
			return ""
		}
		resource := m[2]
		if m[3] != "" {
			resource += "." + m[3]
		}
		if m[4] != "" {
			resource += " in the namespace " + m[4]
		}
		resources[m[1]] = append(resources[m[1]], resource)
	}
	var verbs []string
	for _, verb := range slices.Sorted(maps.Keys(resources)) {
		slices.Sort(resources[verb])
		verbs = append(verbs, verb+" "+words.And(slices.Compact(resources[verb])))
	}
	return "you may not " + strings.Join(verbs, ", nor ")
}

// parts returns the errors that were joined into one.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, parts(e)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil {
		if all := parts(inner); len(all) > 1 {
			return all
		}
	}
	return []error{err}
}

// unreachable explains the error of a cluster that does not answer, and returns other errors unchanged. instead is as for connect.
func unreachable(config *rest.Config, err error, instead string) error {
	var request *url.Error
	if !errors.As(err, &request) {
		return err
	}
	return fmt.Errorf("the cluster at %s cannot be reached: %w: select another one with --kubeconfig or --context%s", config.Host, request.Err, instead)
}
