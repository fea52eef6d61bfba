// The reader's end of RDMA: a peer (rdma_peer.h) for each owner that is read from.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/mutex.h"
#include "common/status.h"
#include "server/transport/rdma_control.h"
#include "server/transport/rdma_peer.h"
#include "server/transport/rdma_slab.h"
#include "server/transport/transport.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

// Thread-safe.
class RdmaReader {
 public:
  // All outlive it; the options are valid.
  RdmaReader(const RdmaReaderOptions& options, VerbsDevice* device, int port, RdmaControl* control,
             RdmaSlabs* slabs)
      : options_(options), device_(device), port_(port), control_(control), slabs_(slabs) {}
  ~RdmaReader();
  void Read(ReadRequest request, ReadDone done);  // as Transport::Read
  void Drop(const RdmaSlab* slab);                // as RdmaPeer::Drop, of all peers
  ItsReads Finish(const std::string& address, const GrantToken& token);  // as Transport::Finish

 private:
  // Good until the reader is destroyed.
  StatusOr<RdmaPeer*> PeerAt(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);

  const RdmaReaderOptions options_;
  VerbsDevice* const device_;
  const int port_;
  RdmaControl* const control_;
  RdmaSlabs* const slabs_;
  Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::unique_ptr<RdmaPeer>> peers_;  // under mu_ until `closing_`
};

}  // namespace cairn::transport
