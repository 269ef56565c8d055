package runlane

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// newID returns a UUIDv7, so that the store appends it to its index.
func newID() string {
	var raw [16]byte
	// It never fails, says its documentation.
	_, _ = rand.Read(raw[6:])
	now := time.Now().UnixMilli()
	for place := range 6 {
		raw[place] = byte(now >> (40 - 8*place))
	}
	raw[6] = 0x70 | raw[6]&0x0f
	raw[8] = 0x80 | raw[8]&0x3f
	text := hex.EncodeToString(raw[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
