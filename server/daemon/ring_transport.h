// How this member's memory is read by the others, and theirs by it: over RDMA, TCP, or what both ends have.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "server/daemon/options.h"
#include "server/node/background_gate.h"
#include "server/node/links.h"
#include "server/transport/transport.h"

namespace cairn::daemon {

// The members' control wire for a transport, which starts before there is one.
class MembersWire final : public transport::ControlWire {
 public:
  // As node::Links::Set.
  void Set(node::PeerLinks* links) { links_.Set(links); }
  StatusOr<std::string> Ask(int32_t rank, const std::string& question,
                            MonotonicNanos deadline) override {
    return links_.AskTransport(rank, question, deadline);
  }

 private:
  node::Links links_;
};

// The others outlive it. With `auto` a machine without RDMA, or without the right to lock the budget in memory, has
// TCP; with `rdma` that is an error, which names what is missing. Where all is to be encrypted there is TCP with TLS
// alone: a device sends what it reads as it is.
StatusOr<std::unique_ptr<transport::Transport>> StartRingTransport(const Options& options,
                                                                   node::BackgroundGate* background,
                                                                   MembersWire* wire);

}  // namespace cairn::daemon
