package limited

import (
	"fmt"

	"go.yaml.in/yaml/v2"
)

// maxExpanded bounds a YAML document with its aliases expanded, in bytes. A document of a ConfigMap has at most 1 MiB without them.
const maxExpanded = 8 << 20

// YAML returns an error if a YAML document is too large when the values of its aliases take the places of the aliases, as in JSON. Parsing shares these
// values in memory, and only refuses documents with very many aliases. A document that is not YAML is no error here.
func YAML(data []byte) error {
	var value any
	if err := yaml.Unmarshal(data, &value); err != nil {
		return nil //nolint:nilerr // Whoever reads the document reports it.
	}
	if left := subtractSize(value, maxExpanded); left < 0 {
		return fmt.Errorf("with its aliases expanded, the YAML is larger than %s", sizeText(maxExpanded))
	}
	return nil
}

// subtractSize subtracts the size of a value from the bytes that are left. It returns at once when none are.
func subtractSize(value any, left int) int {
	const perValue = 4 // For punctuation.
	left -= perValue
	switch v := value.(type) {
	case string:
		return left - len(v)
	case []any:
		for i := 0; i < len(v) && left >= 0; i++ {
			left = subtractSize(v[i], left)
		}
	case map[any]any:
		for key, item := range v {
			if left < 0 {
				break
			}
			left = subtractSize(item, subtractSize(key, left))
		}
	}
	return left
}
