package plain

import (
	"strings"
	"unicode/utf8"
)

// MaxNote is the longest note of an event, in bytes. The API server rejects events with longer notes.
const MaxNote = 1024

const ellipsis = "..."

// Shorten returns s in at most the given number of bytes, with an ellipsis if something was cut. It cuts between characters: the API server would
// replace a partial character, and the stored string would never equal the intended one.
func Shorten(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= limit {
		return s
	}
	end := max(0, limit-len(ellipsis))
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}
