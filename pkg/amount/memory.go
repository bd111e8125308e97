package amount

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// minMemory is the smallest amount of device memory that a user can mean: 1 MiB. No process on a GPU uses less than a hundred times that.
const minMemory = 1 << 20

// Memory parses an amount of device memory that a user wrote, such as 4Gi. It returns bytes, at most [Max], and an error if the text is no such amount.
// A number without a unit is bytes, which nobody means.
func Memory(text string) (int64, error) {
	q, err := Parse(text)
	switch {
	case err != nil:
		return 0, err
	case q.Sign() < 0:
		return 0, fmt.Errorf("%q is negative: write one such as 4Gi", text)
	}
	if meant := MeantMemory(q, text); meant != "" {
		return 0, errors.New(meant)
	}
	return min(Max, Value(q)), nil
}

// MeantMemory returns what a user probably meant with an amount of device memory that is positive and less than 1 MiB. It returns "" for other amounts. text is
// the amount as the user wrote it.
func MeantMemory(q resource.Quantity, text string) string {
	bytes := Value(q)
	if bytes <= 0 || bytes >= minMemory {
		return ""
	}
	number := strings.TrimRight(text, "numkKi")
	if strings.ContainsAny(number, "eE") {
		number = fmt.Sprint(bytes)
	}
	return fmt.Sprintf("%q is %s bytes, and no pod needs less than 1Mi of device memory: did you mean %sMi?", text, thousands(bytes), strings.TrimPrefix(number, "+"))
}

// thousands formats a positive number with commas.
func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
