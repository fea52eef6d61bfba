// A client of both sockets without a line of libcairn, for tests that look at the daemon alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "Cairn.h"
#include "common/fd.h"
#include "common/fd_channel.h"

namespace cairn::testing {

// Throws what Thrift throws: wire::Error from calls, TTransportException when the daemon is gone.
class RawClient {
 public:
  explicit RawClient(const std::string& socket);  // connects, says nothing

  wire::CairnClient& call() { return *client_; }
  int64_t NextCall() { return ++calls_; }

  // Hello, then the fd channel.
  void Begin(const std::string& job, int64_t attempt, int32_t writer, int32_t world_size);
  wire::HelloReply Hello(const wire::HelloRequest& request);
  // Returns the code of Attached, or -1 when the daemon closed without one.
  int Attach();
  // The Thrift connection anew; the fd channel stays. Waits for a daemon that is starting.
  void Rejoin();
  void CloseThrift();
  void CloseChannel() { channel_.Reset(); }

  // The descriptor that was pushed for `lease`; invalid when none is there.
  UniqueFd TakeFd(int64_t lease);

  const wire::HelloReply& hello() const { return hello_; }
  ProgressPage* progress() { return reinterpret_cast<ProgressPage*>(progress_.data()); }

  // create → write through the slab → commit, one object. Returns the commit's answer.
  wire::CommitReply Save(int64_t step, const std::string& name, const std::string& bytes);
  // open(MAP) → bytes; releases.
  std::string Load(const std::string& job, int64_t step, const std::string& name);

  static wire::HelloRequest HelloOf(const std::string& job, int64_t attempt, int32_t writer,
                                    int32_t world_size);

 private:
  struct Received {
    FdLent lent;
    UniqueFd fd;
  };

  void Connect();

  const std::string socket_;
  std::string process_;
  std::unique_ptr<wire::CairnClient> client_;
  wire::HelloRequest request_;
  wire::HelloReply hello_;
  UniqueFd channel_;
  Mapping progress_;
  std::vector<Received> received_;
  std::vector<std::pair<int64_t, Mapping>> slabs_;  // writable ones, by slab
  int64_t calls_ = 0;
};

// Bytes that differ by seed, so that one object is never taken for another.
std::string Pattern(size_t length, uint32_t seed);

}  // namespace cairn::testing
