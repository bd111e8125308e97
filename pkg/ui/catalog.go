package ui

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
)

// renewal is the time after which a catalog is looked up again. The controller publishes at most that often. retry is the time if the controller's
// catalog was not found.
const (
	renewal = 5 * time.Minute
	retry   = 20 * time.Second
)

// Catalog is a catalog that is looked up again while the page is open, because prices change. It is safe for concurrent use.
type Catalog struct {
	find func(context.Context) (cloud.Catalog, string, error)
	clk  clock.Clock

	mu    sync.Mutex
	found cloud.Catalog
	note  string
	asked time.Time
}

// NewCatalog returns a catalog. find returns the instance types, and a note for users if they are not those that the controller plans with.
func NewCatalog(ctx context.Context, clk clock.Clock, find func(context.Context) (cloud.Catalog, string, error)) (*Catalog, error) {
	found, note, err := find(ctx)
	if err != nil {
		return nil, err
	}
	return &Catalog{find: find, clk: clk, found: found, note: note, asked: clk.Now()}, nil
}

// InstanceTypes returns the instance types of a node class from the last lookup.
func (c *Catalog) InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing {
	c.mu.Lock()
	defer c.mu.Unlock()
	after := renewal
	if c.note != "" {
		after = retry
	}
	if now := c.clk.Now(); now.Sub(c.asked) >= after {
		c.asked = now
		// Old instance types are better than none.
		if found, note, err := c.find(ctx); err == nil {
			c.found, c.note = found, note
		}
	}
	return c.found.InstanceTypes(ctx, class)
}

// Note tells users which instance types these are. It returns "" if they are those that the controller plans with, or that the user has given.
func (c *Catalog) Note() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.note
}
