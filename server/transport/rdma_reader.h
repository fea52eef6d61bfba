// The reader's end of RDMA: a peer (rdma_peer.h) for each owner that is read from.
#pragma once

#include <string>

#include "server/transport/peer_table.h"
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
      : options_(options),
        device_(device),
        port_(port),
        control_(control),
        slabs_(slabs),
        peers_(options.max_peers) {}
  void Read(ReadRequest request, ReadDone done);  // as Transport::Read
  void Drop(const RdmaSlab* slab);                // as RdmaPeer::Drop, of all peers
  ItsReads Finish(const std::string& address, const GrantToken& token);  // as Transport::Finish

 private:
  const RdmaReaderOptions options_;
  VerbsDevice* const device_;
  const int port_;
  RdmaControl* const control_;
  RdmaSlabs* const slabs_;
  PeerTable<RdmaPeer> peers_;  // last: their threads use the members above
};

}  // namespace cairn::transport
