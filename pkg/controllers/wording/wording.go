// Package wording keeps what the controllers say within what the API takes.
package wording

import (
	"strings"
	"unicode/utf8"
)

// MaxNote is the API's bound on the note of an event, in bytes; an event with a longer one is refused and nobody sees it.
const MaxNote = 1024

const cut = "..."

// Shorten is s within so many bytes, with an ellipsis where something was left out. It cuts between characters: half a character would be
// stored as another one, and what was stored would never equal what was meant.
func Shorten(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= most {
		return s
	}
	end := max(0, most-len(cut))
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + cut
}
