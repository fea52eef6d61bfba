// The reader's end of data streams: per peer a queue of reads and a few streams, each with a thread.
// A stream asks a few questions ahead, so that the owner always has one to answer, and takes the
// answers in order: into a buffer that fits the processor's cache, checksummed there, and written into
// the slab. The kernel lets one thread at a time write a file; a stream that would have to wait for
// another one's write receives further pieces meanwhile.
//
// No slab is mapped: a page that its writer took away is then an error of that read, not a signal. The
// second copy is the price (docs/benchmarks.md, tcp_read). A mapping that only the kernel touches, by
// recv, would be as safe, but the checksum needs bytes of the daemon's own, so that the copy comes back
// as a pread; mapped anew for each block that is no cheaper.
//
// What a cut connection leaves unanswered is asked once more on a new one, for a read changes nothing;
// the second time it is UNAVAILABLE.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "server/transport/peer_table.h"
#include "server/transport/slabs.h"
#include "server/transport/tcp_socket.h"
#include "server/transport/tcp_wire.h"

namespace cairn::transport {

struct TcpReaderOptions {
  PeerId self;                                 // whom grants name
  int streams = 2;                             // per peer, 1 … 8
  int ahead = 4;                               // questions of a stream without an answer, 1 … 64
  int max_peers = 64;                          // 1 … 1,024
  size_t max_waiting = 4096;                   // reads per peer, 1 … 65,536
  MonotonicNanos stall = 3 * kNanosPerSecond;  // a peer that moves nothing for so long is cut off
  MonotonicNanos idle =
      20 * kNanosPerSecond;  // a stream that has nothing to ask is closed after it
  StreamSecurity security;   // with TLS an owner is shown a token once it has shown its certificate
  Status Validate() const;
};

// The streams to one peer. Thread-safe.
class TcpPeer {
 public:
  TcpPeer(std::string address, const TcpReaderOptions& options);
  ~TcpPeer();
  // Ends its threads; what is waiting, and what comes later, ends with CANCELLED.
  void Close();

  struct Waiting {
    ReadRequest request;
    ReadDone done;
    std::shared_ptr<AttachedSlab> into;
    ExtentRef from;  // what the region says, from `offset` on
    int tries = 0;
  };
  void Read(Waiting read);

 private:
  class Stream;
  // Takes the read, unless it is refused.
  Status Admit(Waiting* read) ABSL_LOCKS_EXCLUDED(mu_);
  // At most `most` reads, in order; those whose deadline has passed are ended. With `wait` it waits for
  // the first, but not beyond `idle`. Sets *closing when the transport is closing.
  std::deque<Waiting> Take(size_t most, bool wait, bool* closing) ABSL_LOCKS_EXCLUDED(mu_);
  void PutBack(std::deque<Waiting> reads) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all that wait.
  void FailAll(const Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // One more stream, if there may be one.
  Status AddStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string address_;
  const TcpReaderOptions options_;
  Mutex mu_;
  CondVar wake_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  int idle_ ABSL_GUARDED_BY(mu_) = 0;  // streams that wait in Take
  std::vector<std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
};

// All peers. Thread-safe.
class TcpReader {
 public:
  // `slabs` outlives it; the options are valid.
  TcpReader(const TcpReaderOptions& options, Slabs* slabs)
      : options_(options), slabs_(slabs), peers_(options.max_peers) {}
  void Read(ReadRequest request, ReadDone done);  // as Transport::Read

 private:
  const TcpReaderOptions options_;
  Slabs* const slabs_;
  PeerTable<TcpPeer> peers_;  // last: their threads use the members above
};

}  // namespace cairn::transport
