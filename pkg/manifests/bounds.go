package manifests

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v2"
)

// The bounds on what is read, so that no manifest takes all of the memory or many minutes.
const (
	// MaxSize is the maximum size of all files together in bytes, and of their documents as JSON, in which YAML's aliases are replaced by what they name.
	MaxSize = 128 << 20
	// maxObjects is the maximum number of documents and of items in lists, including those that are skipped.
	maxObjects = 200_000
	// maxDepth is how deep lists and objects may be in one another. The schemas of CRDs, which are the deepest objects in practice, have about 60.
	maxDepth = 200
	// maxClaims is the maximum number of PersistentVolumeClaims of the pods of all workloads.
	maxClaims = 1_000_000
)

type budget struct{ bytes, objects int }

// spend returns an error if a document does not fit in the budget. Its size is that of its JSON.
func (b *budget) spend(at place, size int) error {
	if b.objects--; b.objects < 0 {
		return fmt.Errorf("%s: there are more than %d objects", at, maxObjects)
	}
	if b.bytes -= size; b.bytes < 0 {
		return tooLarge(at)
	}
	return nil
}

func tooLarge(at place) error {
	return fmt.Errorf("%s: the objects have more than %d MiB as JSON, with YAML's aliases replaced by what they name", at, MaxSize>>20)
}

// checkAliases returns an error if a YAML document would have more bytes than limit after its aliases are replaced. It returns nil for invalid YAML.
func checkAliases(at place, text []byte, limit int) error {
	if !bytes.ContainsRune(text, '&') || !bytes.ContainsRune(text, '*') {
		return nil // It has no alias.
	}
	var object any
	if yaml.Unmarshal(text, &object) == nil && bytesLeft(object, limit) < 0 {
		return tooLarge(at)
	}
	return nil
}

// bytesLeft returns what is left of limit after the bytes of a value, as a lower bound on its JSON. It stops when nothing is left.
func bytesLeft(value any, limit int) int {
	limit--
	switch v := value.(type) {
	case string:
		return limit - len(v)
	case []any:
		for i := 0; i < len(v) && limit >= 0; i++ {
			limit = bytesLeft(v[i], limit)
		}
	case map[any]any:
		for key, item := range v {
			if limit < 0 {
				break
			}
			limit = bytesLeft(item, bytesLeft(key, limit))
		}
	}
	return limit
}

// checkDepth returns an error if lists and objects of JSON are too deep in one another.
func checkDepth(at place, json []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(json); i++ {
		switch c := json[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == '{' || c == '['):
			if depth++; depth > maxDepth {
				return fmt.Errorf("%s: lists and objects are more than %d deep in one another", at, maxDepth)
			}
		case !quoted && (c == '}' || c == ']'):
			depth--
		}
	}
	return nil
}
