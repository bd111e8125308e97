package watchdog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// configMap is the name of the ConfigMap with the objects that are set aside, and dataKey the key in it.
	configMap = "karve-set-aside"
	dataKey   = "objects"
)

// Store keeps the objects that are set aside in a ConfigMap, for a restarted controller.
type Store struct {
	// Client writes the ConfigMap, and Live reads it from the API server.
	Client client.Writer
	Live   client.Reader
	// Namespace is the namespace of the ConfigMap. If it is "", nothing is stored.
	Namespace string
}

// +kubebuilder:rbac:groups="",namespace=karve-system,resources=configmaps,verbs=create
// +kubebuilder:rbac:groups="",namespace=karve-system,resources=configmaps,resourceNames=karve-set-aside,verbs=get;update

// load adds the stored objects.
func (s *Store) load(ctx context.Context, aside *Aside, now time.Time) error {
	if s.Namespace == "" {
		return nil
	}
	var stored corev1.ConfigMap
	err := s.Live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: configMap}, &stored)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // The roles may be of an older chart.
		return nil
	case err != nil:
		return fmt.Errorf("reading ConfigMap %s/%s: %w", s.Namespace, configMap, err)
	}
	var entries []Entry
	if err := json.Unmarshal([]byte(stored.Data[dataKey]), &entries); err != nil {
		log.FromContext(ctx).Error(err, "A stored list of what is set aside is invalid", "configMap", configMap)
	}
	aside.restore(entries, now)
	return nil
}

// save stores the objects unless they are stored already.
func (s *Store) save(ctx context.Context, aside *Aside) error {
	entries, unsaved := aside.taken()
	if !unsaved || s.Namespace == "" {
		return nil
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return fmt.Errorf("encoding the objects that are set aside: %w", err)
	}
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: configMap}, Data: map[string]string{dataKey: string(text)}}
	err = s.Client.Create(ctx, wanted)
	if apierrors.IsAlreadyExists(err) {
		wanted.ResourceVersion = "" // The leader is its only writer.
		err = s.Client.Update(ctx, wanted)
	}
	if err != nil {
		aside.again()
		return fmt.Errorf("writing ConfigMap %s/%s: %w", s.Namespace, configMap, err)
	}
	return nil
}

// restore adds stored entries, and keeps those that were added since the start.
func (a *Aside) restore(entries []Entry, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	unsaved := a.unsaved
	for _, e := range entries {
		if _, known := a.entries[e.Object]; !known && now.Sub(e.Since) < retryAfter {
			a.put(e)
			e.matched = now
			a.entries[e.Object] = e
		}
	}
	a.unsaved = unsaved
}

// taken returns the entries to store, and whether they differ from the stored ones.
func (a *Aside) taken() ([]Entry, bool) {
	entries := a.Entries()
	a.mu.Lock()
	defer a.mu.Unlock()
	unsaved := a.unsaved
	a.unsaved = false
	return entries, unsaved
}

// again records that the entries were not stored.
func (a *Aside) again() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unsaved = true
}
