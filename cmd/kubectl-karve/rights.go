package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/words"
)

const reviews = 32

func review(n int, f func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(reviews)
	for i := range n {
		group.Go(func() error { return f(i) })
	}
	return group.Wait()
}

func (c connection) may(ctx context.Context, rights []doctor.Right) ([]bool, error) {
	allowed := make([]bool, len(rights))
	err := review(len(rights), func(i int) error {
		asked := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributesOf(rights[i])}}
		err := c.Create(ctx, asked)
		allowed[i] = asked.Status.Allowed
		return err
	})
	return allowed, err
}

func attributesOf(r doctor.Right) *authorizationv1.ResourceAttributes {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{Group: r.Group, Resource: resource, Subresource: sub, Verb: r.Verb, Namespace: r.Namespace, Name: r.Name}
}

// servesResource reports whether the cluster serves the resource of a right, in a version that is read.
func (c connection) servesResource(r doctor.Right) bool {
	resource, _, _ := strings.Cut(r.Resource, "/")
	kind := schema.GroupVersionResource{Group: r.Group, Resource: resource}
	if r.Group == resourcev1.GroupName {
		kind.Version = resourcev1.SchemeGroupVersion.Version
	}
	_, err := c.RESTMapper().KindFor(kind)
	return err == nil
}

// needs reports whether rights are needed that go with the right to a resource, or always if there is none.
func (c connection) needs(with doctor.Right) bool {
	return with == doctor.Right{} || c.servesResource(with)
}

// checkRights begins to check the rights of a verb of which nothing else would report that they are missing. It returns a function that waits for the answer: notes on
// what the verb does without some of them, or an error if it needs one. It returns neither if the user may not ask.
func (c connection) checkRights(ctx context.Context, verb string, in doctor.Namespaces) func() ([]string, error) {
	found := make(chan struct{})
	var notes []string
	var failed error
	go func() {
		defer close(found)
		var needs []doctor.Need
		var rights []doctor.Right
		for _, n := range doctor.NeedsOf(verb, in) {
			if n.Checked && c.needs(n.With) {
				needs, rights = append(needs, n), append(rights, n.Right)
			}
		}
		allowed, err := c.may(ctx, rights)
		var missing, does []string
		without := map[string][]string{}
		for i, n := range needs {
			switch {
			case err != nil || allowed[i]:
			case n.Without == "":
				missing = append(missing, n.String())
			default:
				if without[n.Without] == nil {
					does = append(does, n.Without)
				}
				without[n.Without] = append(without[n.Without], n.String())
			}
		}
		for _, d := range does {
			notes = append(notes, fmt.Sprintf("you may not %s: %s", words.And(without[d]), d))
		}
		if len(missing) > 0 {
			failed = fmt.Errorf("forbidden: you may not %s: see docs/cli.md#permissions", words.And(missing))
		}
	}()
	return func() ([]string, error) {
		<-found
		return notes, failed
	}
}
