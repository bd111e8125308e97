package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/doctor"
)

// reviews is the number of rights that are checked concurrently.
const reviews = 32

// may asks the API server whether the user has each of the rights.
func (c connection) may(ctx context.Context, rights []doctor.Right) ([]bool, error) {
	allowed, errs := make([]bool, len(rights)), make([]error, len(rights))
	var group sync.WaitGroup
	turns := make(chan struct{}, reviews)
	for i := range rights {
		turns <- struct{}{}
		group.Go(func() {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributesOf(rights[i])}}
			errs[i] = c.Create(ctx, review)
			allowed[i] = review.Status.Allowed
			<-turns
		})
	}
	group.Wait()
	return allowed, errors.Join(errs...)
}

func attributesOf(r doctor.Right) *authorizationv1.ResourceAttributes {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{Group: r.Group, Resource: resource, Subresource: sub, Verb: r.Verb, Namespace: r.Namespace, Name: r.Name}
}

// servesResource reports whether the cluster serves the resource of a right, in a version that is read.
func (c connection) servesResource(r doctor.Right) bool {
	if r.Group == resourcev1.GroupName && (!c.dra || r.Resource == "devicetaintrules" && !c.taintRules) {
		return false
	}
	resource, _, _ := strings.Cut(r.Resource, "/")
	_, err := c.RESTMapper().KindFor(schema.GroupVersionResource{Group: r.Group, Resource: resource})
	return err == nil
}

// checkRights begins to check the rights of a verb of which nothing else would report that they are missing. It returns a function that waits for the answer: notes on
// what the verb does without some of them, or an error if it needs one. It returns neither if the user may not ask.
func (c connection) checkRights(ctx context.Context, verb string, in doctor.Namespaces) func() ([]string, error) {
	type answer struct {
		notes []string
		err   error
	}
	found := make(chan answer, 1)
	go func() {
		var needs []doctor.Need
		var rights []doctor.Right
		for _, n := range doctor.NeedsOf(verb, in) {
			if n.Checked && (!n.Served || c.servesResource(n.Right)) {
				needs, rights = append(needs, n), append(rights, n.Right)
			}
		}
		allowed, err := c.may(ctx, rights)
		var a answer
		var missing, does []string
		without := map[string][]string{}
		for i, n := range needs {
			switch {
			case err != nil || allowed[i]:
			case n.Without == "":
				missing = append(missing, n.May())
			default:
				if without[n.Without] == nil {
					does = append(does, n.Without)
				}
				without[n.Without] = append(without[n.Without], n.May())
			}
		}
		for _, d := range does {
			a.notes = append(a.notes, fmt.Sprintf("you may not %s: %s", joinWords(without[d]), d))
		}
		if len(missing) > 0 {
			a.err = fmt.Errorf("forbidden: you may not %s: docs/cli.md lists the permissions for each verb", joinWords(missing))
		}
		found <- a
	}()
	return func() ([]string, error) {
		a := <-found
		return a.notes, a.err
	}
}
