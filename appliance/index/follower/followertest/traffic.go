package followertest

import (
	"net"
	"sync/atomic"
)

// traffic counts the connections and bytes of a listener.
type traffic struct{ connections, in, out atomic.Int64 }

type meter struct {
	net.Listener
	*traffic
}

func (m *meter) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	m.connections.Add(1)
	return &meteredConn{c, m.traffic}, nil
}

type meteredConn struct {
	net.Conn
	*traffic
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.Add(int64(n))
	return n, err
}

func (c *meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.out.Add(int64(n))
	return n, err
}
