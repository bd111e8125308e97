// Package published defines the catalog that the controller publishes for kubectl karve: the instance types of each node class, with their zones, their
// prices and the capacity for pods, as the controller plans with them. It is a compressed JSON document that fits into a ConfigMap.
package published

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
)

// version is the version of the format. Readers refuse others.
const version = 1

const (
	// MaxBytes is the largest compressed catalog, in bytes. A ConfigMap has at most one mebibyte.
	MaxBytes = 900 << 10
	// maxDocument is the largest document in bytes, so that a few compressed bytes cannot exhaust the memory.
	maxDocument = 64 << 20
	// maxMicroUSD is a million dollars.
	maxMicroUSD = 1_000_000_000_000
)

// Catalog has the instance types of node classes.
type Catalog map[v1alpha1.NodeClassReference]catalog.Listing

// document is the JSON format. Node classes with equal instance types share them.
type document struct {
	Version     int                    `json:"version"`
	Types       []catalog.InstanceType `json:"types"`
	NodeClasses []nodeClass            `json:"nodeClasses"`
}

type nodeClass struct {
	Group        string                `json:"group"`
	Kind         string                `json:"kind"`
	Name         string                `json:"name"`
	Types        []int                 `json:"types"`
	Reason       string                `json:"reason,omitempty"`
	Message      string                `json:"message,omitempty"`
	Reservations []catalog.Reservation `json:"reservations,omitempty"`
}

// Encode returns the catalog as compressed JSON. Equal catalogs have equal bytes. It returns an error if the result is larger than MaxBytes.
func Encode(c Catalog) ([]byte, error) {
	d := document{Version: version, Types: []catalog.InstanceType{}, NodeClasses: []nodeClass{}}
	known := map[string]int{}
	for _, ref := range slices.SortedFunc(maps.Keys(c), compareReferences) {
		listing := c[ref]
		class := nodeClass{ref.Group, ref.Kind, ref.Name, []int{}, listing.Reason, listing.Message, listing.Reservations}
		for i := range listing.InstanceTypes {
			t := atListPrices(listing.InstanceTypes[i])
			key, err := json.Marshal(t)
			if err != nil {
				return nil, err
			}
			at, ok := known[string(key)]
			if !ok {
				at = len(d.Types)
				known[string(key)] = at
				d.Types = append(d.Types, t)
			}
			class.Types = append(class.Types, at)
		}
		d.NodeClasses = append(d.NodeClasses, class)
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := json.NewEncoder(z).Encode(d); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if out.Len() > MaxBytes {
		return nil, fmt.Errorf("the catalog has %d bytes, and at most %d are published", out.Len(), MaxBytes)
	}
	return out.Bytes(), nil
}

func compareReferences(a, b v1alpha1.NodeClassReference) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// atListPrices returns an instance type with the prices of the cloud's list. Readers apply the rules in the settings.
func atListPrices(t catalog.InstanceType) catalog.InstanceType {
	t.Offerings = slices.Clone(t.Offerings)
	for i := range t.Offerings {
		t.Offerings[i].MicroUSDPerHour = t.Offerings[i].ListPrice()
	}
	return t
}

// Decode reads a catalog. The error names the problem.
func Decode(compressed []byte) (Catalog, error) {
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("it is not compressed with gzip: %w", err)
	}
	content, err := io.ReadAll(io.LimitReader(z, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("decompressing it: %w", err)
	}
	if len(content) > maxDocument {
		return nil, fmt.Errorf("it has more than %d bytes", maxDocument)
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(content, &v); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	if v.Version != version {
		return nil, fmt.Errorf("its format has version %d, and this program reads version %d: use the kubectl karve of the controller's release", v.Version, version)
	}
	var d document
	if err := json.Unmarshal(content, &d); err != nil {
		return nil, err
	}
	return d.catalog()
}

func (d *document) catalog() (Catalog, error) {
	types := d.Types
	for i := range types {
		if err := validate(&types[i]); err != nil {
			return nil, fmt.Errorf("instance type %q: %w", types[i].Name, err)
		}
		for j := range types[i].Offerings {
			if o := &types[i].Offerings[j]; o.Reservation != "" {
				o.Reserve(o.Reservation, o.MicroUSDPerHour)
			}
		}
	}
	c := Catalog{}
	for _, class := range d.NodeClasses {
		ref := v1alpha1.NodeClassReference{Group: class.Group, Kind: class.Kind, Name: class.Name}
		if _, twice := c[ref]; twice || class.Kind == "" || class.Name == "" {
			return nil, fmt.Errorf("%s %q has no name or is there twice", class.Kind, class.Name)
		}
		listing := catalog.Listing{Reason: class.Reason, Message: class.Message, Reservations: class.Reservations}
		if err := validateReservations(class.Reservations); err != nil {
			return nil, fmt.Errorf("%s %q: %w", class.Kind, class.Name, err)
		}
		names := map[string]bool{}
		for _, i := range class.Types {
			if i < 0 || i >= len(types) || names[types[i].Name] {
				return nil, fmt.Errorf("%s %q has an instance type that does not exist or is there twice", class.Kind, class.Name)
			}
			names[types[i].Name] = true
			listing.InstanceTypes = append(listing.InstanceTypes, types[i])
		}
		c[ref] = listing
	}
	return c, nil
}

// validateReservations returns an error for reservations that repeat, or with numbers that none has.
func validateReservations(all []catalog.Reservation) error {
	ids := map[string]bool{}
	for _, r := range all {
		if r.ID == "" || ids[r.ID] {
			return fmt.Errorf("reservation %q has no ID or is there twice", r.ID)
		}
		ids[r.ID] = true
		if r.Free != catalog.Slots(r.Free) || r.Total != catalog.Slots(r.Total) || r.ListMicroUSDPerHour < 0 || r.ListMicroUSDPerHour > maxMicroUSD {
			return fmt.Errorf("the numbers of reservation %q are negative, or beyond those of any", r.ID)
		}
	}
	return nil
}

// validate returns an error for values that no machine has. The planner's arithmetic relies on it.
func validate(t *catalog.InstanceType) error {
	if t.Name == "" {
		return errors.New("it has no name")
	}
	for _, r := range []catalog.Resources{t.Capacity, t.Allocatable} {
		if smallest, largest := min(r.MilliCPU, r.MemoryBytes, r.EphemeralBytes, r.Pods), max(r.MilliCPU, r.MemoryBytes, r.EphemeralBytes, r.Pods); smallest < 0 || largest > amount.Max {
			return errors.New("an amount of its resources is negative, or beyond that of any machine")
		}
	}
	for name, n := range t.Extended {
		if n < 0 || n > amount.Max {
			return fmt.Errorf("%d of %s is negative, or beyond that of any machine", n, name)
		}
	}
	if g := t.GPU; g.Count < 0 || g.Count > catalog.MaxGPUs || g.MemoryMiB < 0 || g.MemoryMiB > catalog.MaxMemoryMiB {
		return errors.New("its GPUs are not those of any machine")
	}
	for _, o := range t.Offerings {
		if o.Zone == "" || o.CapacityType == "" {
			return errors.New("an offering has no zone or no capacity type")
		}
		if o.MicroUSDPerHour <= 0 || o.MicroUSDPerHour > maxMicroUSD {
			return fmt.Errorf("a price of %d micro-dollars an hour is not between 0 and a million dollars", o.MicroUSDPerHour)
		}
	}
	return nil
}
