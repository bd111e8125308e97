package manifests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// File is a file of YAML or JSON documents.
type File struct {
	// Name is the name of the file in errors.
	Name    string
	Content []byte
	// Found reports whether the file was found in a directory, and not named by the user. It may then contain something other than Kubernetes objects.
	Found bool
}

// place is where an object was read.
type place struct {
	file     string
	document int
	// item is the position of the object in the List of the document, counted from 1. It is 0 for objects that are not in a list.
	item int
	// object is the kind and name, as far as they are known.
	object string
}

func (p place) String() string {
	s := fmt.Sprintf("%s, document %d", p.file, p.document)
	if p.item > 0 {
		s += fmt.Sprintf(", item %d", p.item)
	}
	if p.object != "" {
		s += ", " + p.object
	}
	return s
}

type document struct {
	place
	json []byte
}

// yamlError joins the lines of an error of the YAML reader.
var yamlError = strings.NewReplacer("yaml: ", "", "unmarshal errors:\n  ", "", "\n  ", "; ", "\n", "; ")

// split returns the documents of a file, numbered from 1, and spends their size. Empty documents are counted but not returned.
func split(file File, left *budget) ([]document, error) {
	if utilyaml.IsJSONBuffer(file.Content) {
		return splitJSON(file, left)
	}
	var documents []document
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(file.Content)))
	for n := 1; ; n++ {
		at := place{file: file.Name, document: n}
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if err := checkAliases(at, text, left.bytes); err != nil {
			return nil, err
		}
		object, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %s", at, yamlError.Replace(err.Error()))
		}
		if err := errors.Join(left.spend(at, len(object)), checkDepth(at, object)); err != nil {
			return nil, err
		}
		if !bytes.Equal(object, []byte("null")) {
			documents = append(documents, document{at, object})
		}
	}
}

func splitJSON(file File, left *budget) ([]document, error) {
	var documents []document
	decoder := json.NewDecoder(bytes.NewReader(file.Content))
	for n := 1; ; n++ {
		at := place{file: file.Name, document: n}
		var object json.RawMessage
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: reading JSON: %w", at, err)
		}
		if err := errors.Join(left.spend(at, len(object)), checkDepth(at, object)); err != nil {
			return nil, err
		}
		documents = append(documents, document{at, object})
	}
}

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
	if yamlv2.Unmarshal(text, &object) == nil && bytesLeft(object, limit) < 0 {
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
