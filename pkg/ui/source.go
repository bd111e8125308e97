package ui

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot/facts"
)

// renewal is the time after which a source is looked up again. The controller publishes at most that often. retry is the time if the controller has not
// published everything.
const (
	renewal = 5 * time.Minute
	retry   = 20 * time.Second
)

// Source is a source that is looked up again while the page is open, because prices and settings change. It is safe for concurrent use.
type Source struct {
	find func(context.Context) (published.Source, error)
	clk  clock.Clock

	mu    sync.Mutex
	found published.Source
	asked time.Time
}

// NewSource returns a source. find looks it up.
func NewSource(ctx context.Context, clk clock.Clock, find func(context.Context) (published.Source, error)) (*Source, error) {
	found, err := find(ctx)
	if err != nil {
		return nil, err
	}
	return &Source{find: find, clk: clk, found: found, asked: clk.Now()}, nil
}

// InstanceTypes returns the instance types of a node class from the last lookup.
func (s *Source) InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := renewal
	if noteOf(&s.found) != "" {
		after = retry
	}
	if now := s.clk.Now(); now.Sub(s.asked) >= after {
		s.asked = now
		// What was found earlier is better than nothing.
		if found, err := s.find(ctx); err == nil {
			s.found = found
		}
	}
	return s.found.InstanceTypes(ctx, class)
}

func (s *Source) last() published.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found
}

// Note tells users what is not that of the controller. It returns "" if nothing is, or only the instance types that the user has given.
func (s *Source) Note() string { return noteOf(new(s.last())) }

func noteOf(found *published.Source) string {
	return strings.Trim(found.Builtin+"; "+found.Assumed, "; ")
}

// Settings returns the current settings of the controller.
func (s *Source) Settings() published.Settings { return s.last().Settings }

// Explainer returns an explainer of a cluster for a client with the current settings.
func (s *Source) Explainer(ctx context.Context, reader client.Client, failed func(error)) func(*facts.Cluster) *explain.Explainer {
	return func(c *facts.Cluster) *explain.Explainer {
		x, err := Explain(ctx, reader, s.last().Settings, s.clk, c)
		if err != nil {
			failed(err)
		}
		return x
	}
}

// Explain returns an explainer of a cluster with the settings of its controller and the PodDisruptionBudgets that the client reads. If it returns an error
// as well, they could not be read, and the explainer takes it that there are none.
func Explain(ctx context.Context, reader client.Client, of published.Settings, clk clock.Clock, c *facts.Cluster) (*explain.Explainer, error) {
	settings := explain.NewSettings(of)
	var err error
	settings.Evictions, err = karpenter.NewEvictions(ctx, reader, clk)
	return explain.New(c, settings), err
}
