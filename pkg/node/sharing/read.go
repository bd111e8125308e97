package sharing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/node/limited"
	"karve.sh/karve/pkg/nodecontract"
)

// Read reads a configuration as NVIDIA's plugin does. It returns a warning with the path, for example "sharing.timeSlicing.foo", for everything that
// NVIDIA's plugin silently ignores. If strict is true, unknown and duplicate keys are errors.
func Read(data []byte, strict bool) (Config, []string, error) {
	r := &reader{strict: strict}
	if err := limited.YAML(data); err != nil {
		return Config{}, nil, err
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		twice := err
		if text, err = yaml.YAMLToJSON(data); err != nil {
			return Config{}, nil, fmt.Errorf("not YAML: %w", err)
		}
		r.doubt("%s", strings.TrimPrefix(twice.Error(), "yaml: "))
	}
	if hasLaterDocument(data) {
		r.doubt("only the first document of the file counts, as in NVIDIA's plugin; what comes after \"---\" is ignored")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var root any
	if err := decoder.Decode(&root); err != nil {
		return Config{}, nil, fmt.Errorf("not YAML: %w", err)
	}
	var c Config
	if root != nil {
		r.object("", root, true, func(o *object) { c = readConfig(o) })
	}
	if len(r.errs) > 0 {
		return Config{}, r.warnings, errors.Join(r.errs...)
	}
	return c, r.warnings, nil
}

// hasLaterDocument reports whether a second or later YAML document has content, valid or not.
func hasLaterDocument(data []byte) bool {
	documents := yamlv2.NewDecoder(bytes.NewReader(data))
	for i := 0; ; i++ {
		var document any
		err := documents.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return false
		case i > 0 && (err != nil || document != nil):
			return true
		case err != nil:
			return false
		}
	}
}

func readConfig(o *object) Config {
	c := Config{Given: map[string][]string{}}
	if v := o.text("version"); v != nil && *v != "" && *v != Version {
		o.r.fail(o.at("version"), "is %q, and only %q is known", *v, Version)
	}
	settings := func(o *object) { o.settings(c.Given) }
	o.object("flags", func(o *object) {
		settings(o)
		o.object("plugin", settings)
		o.object("gfd", settings)
	})
	o.object("resources", func(o *object) {
		if gpus, mig := readPatterns(o, "gpus"), readPatterns(o, "mig"); gpus || mig {
			o.r.warn("%s: names by product are ignored, as NVIDIA's plugin does: every GPU is %s; use sharing.timeSlicing.resources[].rename", o.path, nodecontract.ResourceGPU)
		}
	})
	o.object("sharing", func(o *object) {
		for _, s := range strategies {
			v, ok := o.take(s.key)
			if !ok || v == nil && s.emptyIsAbsent {
				continue
			}
			read := readReplicated(o.r, o.at(s.key), v)
			if s.refuseAboveOne && read.FailRequestsGreaterThanOne == nil {
				read.FailRequestsGreaterThanOne = new(true)
			}
			*s.part(&c.Sharing) = read
		}
		o.object("memorySlots", func(o *object) { c.Sharing.MemorySlots, c.Sharing.Slots = readMemorySlots(o) })
		if c.Sharing.MemorySlots != nil && c.strategy() != nil {
			o.r.fail(o.at("memorySlots"), "GPUs have either slots of memory or replicas: remove memorySlots, timeSlicing or mps")
		}
	})
	o.object("imex", settings)
	return c
}

// settings reads the settings of a mapping. Those without a value are not given.
func (o *object) settings(given map[string][]string) {
	for _, s := range AllSettings {
		key, ok := strings.CutPrefix(s.Key, o.path+".")
		if !ok || strings.Contains(key, ".") {
			continue
		}
		if values := o.values(key, s.kind); values != nil {
			given[s.Key] = values
		}
	}
}

func (o *object) values(key string, of kind) (values []string) {
	switch of {
	case truth:
		if b := o.boolean(key); b != nil {
			values = []string{strconv.FormatBool(*b)}
		}
	case list:
		values = o.texts(key)
	case numbers:
		for i, v := range o.list(key) {
			n, _ := o.r.integer(indexPath(o.at(key), i), v)
			values = append(values, strconv.Itoa(n))
		}
	case duration:
		o.duration(key)
	case text:
		if s := o.text(key); s != nil {
			values = []string{*s}
		}
	}
	return values
}

// readPatterns reads names for the products that match a pattern, and reports whether there are any.
func readPatterns(o *object, key string) bool {
	patterns := o.list(key)
	for i, v := range patterns {
		o.r.item(indexPath(o.at(key), i), v, func(o *object) {
			_, patterned := o.fields["pattern"]
			o.text("pattern")
			switch name := o.text("name"); {
			case !patterned:
				o.r.fail(o.at("pattern"), "is missing")
			case name == nil:
				o.r.fail(o.at("name"), "is missing")
			default:
				o.r.name(o.at("name"), *name)
			}
		})
	}
	return len(patterns) > 0
}

func readReplicated(r *reader, path string, v any) *Replicated {
	s := &Replicated{}
	if v == nil {
		r.fail(path, "no resources specified")
		return s
	}
	r.object(path, v, false, func(o *object) {
		if b := o.boolean("renameByDefault"); b != nil {
			s.RenameByDefault = *b
		}
		s.FailRequestsGreaterThanOne = o.boolean("failRequestsGreaterThanOne")
		for i, v := range o.list("resources") {
			o.r.item(indexPath(o.at("resources"), i), v, func(o *object) {
				s.Resources = append(s.Resources, readEntry(o, s.RenameByDefault))
			})
		}
		if len(s.Resources) == 0 {
			o.r.fail(path, "no resources specified")
		}
	})
	return s
}

func readEntry(o *object, rename bool) Entry {
	var e Entry
	if name := o.text("name"); name == nil {
		o.r.fail(o.at("name"), "no resource name specified")
	} else if e.Name = o.r.name(o.at("name"), *name); e.Name != "" && e.Name != nodecontract.ResourceGPU && !strings.HasPrefix(e.Name, nodecontract.NVIDIAPrefix+"mig-") {
		o.r.warn("%s: no GPU is %s, so this has no effect; GPUs are %s, and MIG instances also, for instance, nvidia.com/mig-1g.5gb", o.at("name"), e.Name, nodecontract.ResourceGPU)
	}
	if v, ok := o.take("devices"); ok {
		if e.Devices = readDevices(o.r, o.at("devices"), v); !e.Devices.All() {
			o.r.warn("%s: takes effect, unlike in NVIDIA's plugin, which shares all GPUs alike", o.at("devices"))
		}
	}
	if v, ok := o.take("replicas"); !ok {
		o.r.fail(o.at("replicas"), "no replicas specified")
	} else if n, ok := o.r.integer(o.at("replicas"), v); ok {
		switch e.Replicas = n; {
		case n < 2:
			o.r.fail(o.at("replicas"), "number of replicas must be >= 2, and is %d; leave the resource out to not share it", n)
		case n > MaxReplicas:
			o.r.fail(o.at("replicas"), "is %d, and a GPU can have at most %d", n, MaxReplicas)
		}
	}
	if _, renamed := o.fields["rename"]; renamed {
		if e.Rename = o.r.name(o.at("rename"), or(o.text("rename"), "")); !rename || e.Rename != e.Name+SharedSuffix {
			o.r.warn("%s: takes effect, unlike in NVIDIA's plugin, which knows only renameByDefault", o.at("rename"))
		}
	}
	if rename && e.Rename == "" && e.Name != "" {
		e.Rename = o.r.name(o.at("rename"), e.Name+SharedSuffix)
	}
	return e
}

func readDevices(r *reader, path string, v any) Devices {
	switch v := v.(type) {
	case string:
		if v != "all" {
			r.fail(path, "is %q, and the only text it can be is \"all\"", v)
		}
		return Devices{}
	case json.Number:
		n, ok := r.integer(path, v)
		if ok && n <= 0 {
			r.fail(path, "is %d, and a count of devices must be > 0", n)
		}
		return Devices{Count: n}
	case []any:
		if len(v) > maxItems {
			r.fail(path, "has %d items, and can have at most %d", len(v), maxItems)
			return Devices{}
		}
		d := Devices{List: make([]string, 0, len(v))}
		for i, item := range v {
			ref, ok := item.(string)
			if number, isNumber := item.(json.Number); isNumber {
				ref, ok = number.String(), true
			}
			if !ok || !isRef(ref) {
				r.fail(indexPath(path, i), "is %s, which is no index, no \"gpu:mig\" and no UUID", briefValue(item))
			}
			d.List = append(d.List, ref)
		}
		if len(v) == 0 {
			r.fail(path, "is an empty list; leave it out for all devices")
		}
		return d
	default:
		r.fail(path, "is %s, and can be \"all\", a count, or a list", briefValue(v))
		return Devices{}
	}
}

func isRef(s string) bool { return isIndex(s) || isMIG(s) || isUUID(s, "GPU-") }

func isIndex(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}

// isMIG reports whether a string is the index of a MIG device, its UUID, or its UUID in the old format "MIG-GPU-<uuid>/<gi>/<ci>".
func isMIG(s string) bool {
	if gpu, mig, ok := strings.Cut(s, ":"); ok {
		return isIndex(gpu) && isIndex(mig)
	}
	if isUUID(s, "MIG-") {
		return true
	}
	parts := strings.Split(s, "/")
	return len(parts) == 3 && isUUID(parts[0], "MIG-GPU-") && isIndex(parts[1]) && isIndex(parts[2])
}

func isUUID(s, prefix string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != 36 {
		return false
	}
	for i, c := range rest {
		switch i {
		case 8, 13, 18, 23:
			ok = c == '-'
		default:
			ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
		}
		if !ok {
			return false
		}
	}
	return true
}

// name returns a resource name in NVIDIA's domain. If it is invalid, name records an error and returns "".
func (r *reader) name(path, name string) string {
	full, err := resourceName(name)
	if err != nil {
		r.fail(path, "%s", err)
		return ""
	}
	return full
}
