package ui

import (
	"crypto/subtle"
	"net/http"
	"strings"
)

// Token returns an Admit of [Config] that lets requests with a bearer token pass. The page finds the token in the fragment of its address, which is in no request,
// and sends it in a header, which no other page can make a browser send, and which is not sent to other ports of this computer as a cookie would be.
func Token(token string) func(http.Handler) (http.Handler, error) {
	return func(next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 0 {
				http.Error(w, "The token is not the one of this server: open the URL that kubectl karve ui has printed.", http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		}), nil
	}
}
