package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// unknown stands for an unknown value.
const unknown = "-"

// terminal returns the file of a stream that is a terminal, or nil for other streams.
func terminal(stream any) *os.File {
	if file, ok := stream.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return file
	}
	return nil
}

// palette sets the colors of text. The zero palette sets none.
type palette struct{ on bool }

// paletteFor returns a palette with colors if the stream is a terminal, unless NO_COLOR is set (no-color.org) or the terminal has no colors.
func paletteFor(stream io.Writer) palette {
	return palette{terminal(stream) != nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (p palette) bold(text string) string   { return p.paint("1", text) }
func (p palette) faint(text string) string  { return p.paint("2", text) }
func (p palette) red(text string) string    { return p.paint("31", text) }
func (p palette) green(text string) string  { return p.paint("32", text) }
func (p palette) yellow(text string) string { return p.paint("33", text) }
func (p palette) cyan(text string) string   { return p.paint("36", text) }

func (p palette) paint(sgr, text string) string {
	if !p.on || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}
