package main

import "testing"

func TestURLOfPageIsFound(t *testing.T) {
	for output, want := range map[string]string{
		"http://127.0.0.1:4242/#token=A\nOpen this URL. Press Ctrl-C to stop.\n": "http://127.0.0.1:4242/#token=A",
		"note: words\nhttp://127.0.0.1:1/#token=B\n":                             "http://127.0.0.1:1/#token=B",
		"error: words\n": "", "": "",
	} {
		if got := urlIn(output); got != want {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
	}
}
