package plain

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestShorten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		most int
		want string
	}{
		"a short text is unchanged":           {"12345", 5, "12345"},
		"a long text is cut and marked":       {"123456", 5, "12..."},
		"a multi-byte character is not split": {"1é3456", 5, "1..."},
		"an invalid byte is replaced":         {"1\xc3", 5, "1?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Shorten(c.in, c.most); got != c.want {
				t.Errorf("Shorten(%q, %d) = %q, want %q", c.in, c.most, got, c.want)
			}
		})
	}
}

func TestShortenReturnsValidUTF8WithinLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in, most := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))+rapid.String().Draw(t, "more"), rapid.IntRange(3, 40).Draw(t, "most")
		got := Shorten(in, most)
		if len(got) > most || !utf8.ValidString(got) {
			t.Fatalf("Shorten(%q, %d) = %q", in, most, got)
		}
		if len(in) <= most && utf8.ValidString(in) && got != in || len(in) > most && utf8.ValidString(in) && !strings.HasSuffix(got, ellipsis) {
			t.Fatalf("Shorten(%q, %d) = %q", in, most, got)
		}
	})
}
