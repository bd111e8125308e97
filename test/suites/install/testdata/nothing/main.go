// Command nothing stands in for Karve's programs in tests where the content of an image does not matter.
package main

func main() {}
