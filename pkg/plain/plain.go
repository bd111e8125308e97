// Package plain makes text that others wrote safe to show: on a terminal, on a web page, in a log and in an event. Objects in a cluster have such text: the
// API server does not validate the characters of annotations, messages of conditions, and some fields such as a pod's schedulerName.
package plain

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxLine is the maximum number of characters of a [Line].
const MaxLine = 2000

// hidden reports whether a character controls a terminal, changes the direction of text, or is invisible.
func hidden(r rune) bool {
	if r < utf8.RuneSelf {
		return unicode.IsControl(r)
	}
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// Text returns a text without hidden characters, except for line feeds and tabs. Invalid UTF-8 becomes U+FFFD.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if hidden(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}

// Line returns a text as [Text] does, on one line and with at most MaxLine characters.
func Line(text string) string {
	text = Text(text)
	if strings.ContainsAny(text, "\n\t") {
		text = strings.NewReplacer("\n", " ", "\t", " ").Replace(text)
	}
	if utf8.RuneCountInString(text) <= MaxLine {
		return text
	}
	return string([]rune(text)[:MaxLine-1]) + "…"
}

// Escaped returns JSON in which hidden characters are escape sequences, so that no value changes.
func Escaped(json []byte) []byte {
	raw := func(r rune) bool { return hidden(r) && r != '\n' }
	if !bytes.ContainsFunc(json, raw) {
		return json
	}
	var out []byte
	for _, r := range string(json) {
		if raw(r) {
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
			continue
		}
		out = utf8.AppendRune(out, r)
	}
	return out
}

// Writer writes to W what [Text] leaves of each write.
type Writer struct{ W io.Writer }

func (w Writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.W, Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
