package main

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/term"

	"karve.sh/karve/pkg/plain"
)

const unknown = "-"

// printer is the writer that all verbs print through, except for the live view. It leaves out what an object in the cluster could do to a terminal: of
// all sequences, only the colors of its palette remain. See [palette.show].
type printer struct {
	to io.Writer
	palette
}

func newPrinter(to io.Writer) *printer { return &printer{to, paletteOf(to)} }

func (p *printer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.to, p.show(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// terminalOf returns the file of a stream that is a terminal, or nil for other streams.
func terminalOf(stream any) *os.File {
	if p, ok := stream.(*printer); ok {
		stream = p.to
	}
	if file, ok := stream.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return file
	}
	return nil
}

// palette sets the colors of text. The zero palette sets none.
type palette struct {
	// key is a number in all sequences of the palette. Objects cannot contain it, because it is random.
	key string
}

func newPalette() palette {
	var random [8]byte
	_, _ = rand.Read(random[:]) // It never fails.
	return palette{strconv.FormatUint(binary.NativeEndian.Uint64(random[:]), 10)}
}

// paletteOf returns a palette with colors if the stream is a terminal, unless NO_COLOR is set (no-color.org) or the terminal has no colors.
func paletteOf(stream io.Writer) palette {
	if terminalOf(stream) == nil || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return palette{}
	}
	return newPalette()
}

// paletteFor returns the palette of a printer. Other streams have no colors.
func paletteFor(stream io.Writer) palette {
	if p, ok := stream.(*printer); ok {
		return p.palette
	}
	return palette{}
}

func (p palette) bold(text string) string   { return p.paint("1", text) }
func (p palette) faint(text string) string  { return p.paint("2", text) }
func (p palette) red(text string) string    { return p.paint("31", text) }
func (p palette) green(text string) string  { return p.paint("32", text) }
func (p palette) yellow(text string) string { return p.paint("33", text) }
func (p palette) cyan(text string) string   { return p.paint("36", text) }

func (p palette) paint(sgr, text string) string {
	if p.key == "" || text == "" {
		return text
	}
	return p.begin() + sgr + "m" + text + p.begin() + "0m"
}

// begin returns the first part of a sequence.
func (p palette) begin() string { return "\x1b[" + p.key + ";" }

// color matches a sequence that sets the color of the text after it, of any origin.
var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// show returns a text for a terminal: with the sequences of this palette, without their key, and otherwise as [plain.Text] returns it.
func (p palette) show(text string) string {
	if p.key == "" || !strings.Contains(text, "\x1b") {
		return plain.Text(color.ReplaceAllString(text, ""))
	}
	var out strings.Builder
	for i, part := range strings.Split(text, p.begin()) {
		if i > 0 {
			var sgr string
			sgr, part, _ = strings.Cut(part, "m")
			out.WriteString("\x1b[" + sgr + "m")
		}
		out.WriteString(plain.Text(color.ReplaceAllString(part, "")))
	}
	return out.String()
}
