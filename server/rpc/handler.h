// Answers one connection's calls: decode and validate, ask the node, encode. No exception other than
// wire::Error leaves it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "Cairn.h"
#include "server/node/node.h"
#include "server/rpc/connection.h"

namespace cairn::rpc {

// Used by its connection's thread alone.
class Handler : public wire::CairnIf {
 public:
  // `connection` outlives the handler's last call.
  Handler(node::Node* node, Connection* connection) : node_(node), connection_(connection) {}
  ~Handler() override;  // once nothing more is read from the connection

  void hello(wire::HelloReply& reply, const wire::HelloRequest& request) override;
  void rejoin(wire::HelloReply& reply, int64_t session, const std::string& secret) override;
  void goodbye() override;
  void ping() override {}
  int64_t chooseAttempt(int64_t call) override;
  void resume(wire::Latest& reply, int64_t call, int64_t attempt, int64_t step) override;
  void useCheckpoint(wire::Latest& reply, int64_t call, const wire::CheckpointRef& checkpoint,
                     bool fence) override;
  void create(wire::CreateReply& reply, int64_t call, const wire::CreateRequest& request) override;
  void seal(int64_t call, const wire::SealRequest& request) override;
  void commit(wire::CommitReply& reply, int64_t call, const wire::CommitRequest& request) override;
  void abort(int64_t call, const wire::AbortRequest& request) override;
  void open(wire::OpenReply& reply, int64_t call, const wire::OpenRequest& request) override;
  void release(int64_t call, const std::vector<int64_t>& leases) override;
  void renew(const std::vector<int64_t>& leases) override;
  void readChunk(std::string& reply, int64_t lease, int64_t offset, int32_t length) override;
  void writeChunk(int64_t call, int64_t lease, int64_t offset, const std::string& data) override;
  void latest(wire::Latest& reply, const std::string& job) override;
  void statCheckpoint(wire::CheckpointInfo& reply, const wire::CheckpointRef& checkpoint) override;
  void stat(wire::ObjectInfo& reply, const wire::CheckpointRef& checkpoint,
            const std::string& name) override;
  void ls(wire::ListReply& reply, const std::string& path, const std::string& cursor,
          int32_t limit) override;
  void wait(wire::CheckpointInfo& reply, const wire::CheckpointRef& checkpoint,
            wire::Level::type level, int64_t timeout_ms, int64_t after, int64_t after_head,
            int32_t after_revision) override;
  void persist(int64_t call, const wire::CheckpointRef& checkpoint) override;
  void remove(int64_t call, const wire::CheckpointRef& checkpoint, bool memory_only,
              bool force) override;
  void pin(int64_t call, const wire::CheckpointRef& checkpoint, bool pinned) override;
  void setPolicy(int64_t call, const std::string& job, const wire::JobPolicy& policy) override;
  void previewPolicy(wire::PolicyPreview& reply, const wire::PreviewRequest& request) override;
  void status(wire::NodeStatus& reply) override;

 private:
  void SealSome(int64_t call, const PartKey& part, bool provisional,
                std::vector<engine::event::Seal>* seals);
  engine::Caller Anyone() const;            // with a session or without one
  StatusOr<engine::Caller> Caller() const;  // with a session; FAILED_PRECONDITION without one
  // The part that a create, seal, commit or abort is about; throws wire::Error when its fields are
  // bad, or its attempt is not the one that this session's hello said.
  template <typename Request>
  PartKey PartOf(const Request& request) const;
  MonotonicNanos DefaultDeadline() const;  // of calls that carry no timeout
  void Greet(wire::HelloReply& reply, node::SessionInfo info);
  // The answer's body as `Body`; throws wire::Error when it is an error.
  template <typename Body>
  Body Expect(node::Answer answer) const;

  node::Node* const node_;
  Connection* const connection_;
  node::SessionInfo session_;  // id 0: none yet
  bool said_hello_ = false;    // on this connection, with which the session may end
};

}  // namespace cairn::rpc
