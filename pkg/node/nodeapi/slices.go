package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-logr/logr"
)

// slicesAgain is the interval between requests to an API server that has no ResourceSlices or does not allow reading them.
const slicesAgain = 10 * time.Minute

// sliceVersions are the API versions of ResourceSlices, the newest first. An older cluster has none of them.
var sliceVersions = []string{"v1", "v1beta2", "v1beta1"}

// WatchSlices calls f with the names of the ResourceSlices that a DRA driver publishes for the Node, at first and after each change, until ctx ends.
func (c *Client) WatchSlices(ctx context.Context, driver string, f func(names []string)) {
	log := logr.FromContextOrDiscard(ctx)
	w := &sliceWatch{client: c, selector: "spec.driver=" + driver + ",spec.nodeName=" + c.Name, tell: f}
	said := ""
	c.again(ctx, func() {
		err := w.watch(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		w.version = "" // Start again from the current version after any error.
		missing := isStatus(err, http.StatusNotFound)
		if said != err.Error() && !missing {
			log.Info("ResourceSlices cannot be watched; trying again", "error", err.Error())
		}
		said = err.Error()
		if missing {
			f(nil)
		}
		if missing || isStatus(err, http.StatusForbidden) {
			c.pause(ctx, slicesAgain)
		}
	})
}

func isStatus(err error, code int) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == code
}

type sliceWatch struct {
	client         *Client
	selector       string
	tell           func([]string)
	group, version string
	names          map[string]bool
}

func (w *sliceWatch) watch(ctx context.Context) error {
	if w.version == "" {
		if err := w.list(ctx); err != nil {
			return err
		}
		w.tell(slices.Sorted(maps.Keys(w.names)))
	}
	return w.client.watch(ctx, w.path(w.group), w.selector, &w.version, func(kind string, object json.RawMessage) error {
		var slice struct {
			Metadata Metadata `json:"metadata"`
		}
		if err := json.Unmarshal(object, &slice); err != nil {
			return err
		}
		before := len(w.names)
		if delete(w.names, slice.Metadata.Name); kind != "DELETED" {
			w.names[slice.Metadata.Name] = true
		}
		if len(w.names) != before {
			w.tell(slices.Sorted(maps.Keys(w.names)))
		}
		return nil
	})
}

func (w *sliceWatch) path(group string) string {
	return "/apis/resource.k8s.io/" + group + "/resourceslices"
}

// list lists the ResourceSlices with the newest version that the API server has.
func (w *sliceWatch) list(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, group := range sliceVersions {
		var list struct {
			Metadata Metadata `json:"metadata"`
			Items    []Node   `json:"items"`
		}
		query := url.Values{"fieldSelector": {w.selector}}
		err = w.client.call(ctx, http.MethodGet, w.path(group)+"?"+query.Encode(), metadataOnlyList, "", nil, func(body io.Reader) error {
			return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&list)
		})
		if isStatus(err, http.StatusNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		w.group, w.version, w.names = group, list.Metadata.ResourceVersion, map[string]bool{}
		for _, item := range list.Items {
			w.names[item.Metadata.Name] = true
		}
		return nil
	}
	return err
}

const metadataOnlyList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
