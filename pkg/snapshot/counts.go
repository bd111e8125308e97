package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// counts has the number of pods of each shape, by the shape's key.
type counts map[string]int

// shapeKeyLength keeps annotations short. If two shapes have the same key, one may get the room of the other, as far as it fits.
const shapeKeyLength = 10

func shortened(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])[:shapeKeyLength]
}

// String formats the counts for an annotation, such as "1f0c9a2b7e=4,9b11de02c4=1".
func (c counts) String() string {
	parts := make([]string, 0, len(c))
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if c[key] > 0 {
			parts = append(parts, key+"="+strconv.Itoa(c[key]))
		}
	}
	return strings.Join(parts, ",")
}

// countsOf parses the output of String. It ignores invalid entries.
func countsOf(text string) counts {
	c := counts{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		if n, err := strconv.Atoi(value); err == nil && n > 0 && n <= maxPlannedPods {
			c[key] = n
		}
	}
	return c
}

// maxPlannedPods limits the number of pods of one shape in an annotation.
const maxPlannedPods = 100_000
