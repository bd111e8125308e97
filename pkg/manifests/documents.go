package manifests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

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
