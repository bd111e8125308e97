package plain_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"karve.sh/karve/pkg/plain"
)

func TestTextHasNoHiddenCharacters(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\x1b]0;title\a\x1b[2J\r": "a]0;title[2J",
		"a\u009b31mb\x7f\x00":      "a31mb",
		"\u202eevil\u202c \u2066x\u2069 \u200b\u200d\ufeff\u061c\U000e0041": "evil x ",
		"a\x9b\xffb":         "a\ufffd\ufffdb",
		"a\n\tb\u2028c":      "a\n\tbc",
		"é 模型 × █ 12µ – “x”": "é 模型 × █ 12µ – “x”",
	} {
		if got := plain.Text(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestALineIsOneAndHasABound(t *testing.T) {
	t.Parallel()
	if got := plain.Line("a\r\nb\tc\x1b"); got != "a b c" {
		t.Errorf("%q", got)
	}
	long := plain.Line(strings.Repeat("é\x1b", 5*plain.MaxLine))
	if utf8.RuneCountInString(long) != plain.MaxLine || !strings.HasSuffix(long, "é…") {
		t.Errorf("%d characters", utf8.RuneCountInString(long))
	}
	if whole := strings.Repeat("é", plain.MaxLine); plain.Line(whole) != whole {
		t.Error("a line of the maximum length is cut")
	}
}

func TestEscapedJSONHasTheSameValues(t *testing.T) {
	t.Parallel()
	before := map[string]string{"a\u202e": "\x1b[31m\u009b\x7f\U000e0041é\u2028\n", "b": "<script>"}
	text, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	escaped := plain.Escaped(text)
	if got := plain.Text(string(escaped)); got != string(escaped) {
		t.Errorf("%q has hidden characters", escaped)
	}
	var after map[string]string
	if err := json.Unmarshal(escaped, &after); err != nil || len(after) != 2 || after["a\u202e"] != before["a\u202e"] {
		t.Errorf("%q, %v", after, err)
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[2J\xc2\u009b\r\n\u202e")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range plain.Text(text) {
			if (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) && r != '\n' && r != '\t' {
				t.Errorf("%q still has %U", text, r)
			}
		}
		if got := plain.Line(text); strings.ContainsAny(got, "\n\r\t") || !utf8.ValidString(got) || utf8.RuneCountInString(got) > plain.MaxLine {
			t.Errorf("%q is the line %q", text, got)
		}
	})
}
