// A node and one client of it: sessions, saves and loads through the node's own calls.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "common/checksum.h"
#include "tests/node/node_fixture.h"

namespace cairn::testing {

class SavingNode : public NodeFixture {
 protected:
  engine::Caller CallerOf(SessionId session) const {
    engine::Caller caller;
    caller.session = session;
    caller.uid = getuid();
    caller.gid = getgid();
    return caller;
  }
  MonotonicNanos Soon() const { return RealClock()->Now() + 10 * kNanosPerSecond; }

  // A session without descriptors: bytes go through WriteChunk.
  SessionId Begin(const std::string& job = "job", Attempt attempt = 7) {
    engine::event::Hello hello;
    hello.caller = CallerOf(0);
    hello.pid = getpid();
    hello.process = "0123456789abcdef";
    hello.job = job;
    hello.attempt = attempt;
    hello.writer = 0;
    hello.world_size = 1;
    hello.takes_fds = false;
    node::Node::Begun begun = node().Hello(std::move(hello));
    EXPECT_TRUE(begun.info.ok()) << begun.info.status();
    return begun.info.ok() ? begun.info->id : 0;
  }

  Status Save(SessionId session, Step step, const std::string& name, const std::string& bytes,
              const std::string& job = "job", Attempt attempt = 7) {
    engine::event::Create create;
    create.caller = CallerOf(session);
    create.call = ++calls_;
    create.part = PartKey{CheckpointKey{job, step, attempt, 0}, 0};
    create.world_size = 1;
    create.objects = {{name, bytes.size(), ObjectKind::kRaw, false}};
    create.deadline = Soon();
    node::Answer created = node().Call(std::move(create));
    if (!created.body.ok()) return created.body.status();
    const auto& extents = std::get<engine::reply::Create>(*created.body).extents;
    CAIRN_RETURN_IF_ERROR(node().WriteChunk(CallerOf(session), extents.at(0).lease, 0, bytes));
    engine::event::Commit commit;
    commit.caller = CallerOf(session);
    commit.call = ++calls_;
    commit.part = PartKey{CheckpointKey{job, step, attempt, 0}, 0};
    commit.world_size = 1;
    engine::event::Seal seal;
    seal.name = name;
    seal.length = bytes.size();
    seal.block_crcs = BlockCrcs(bytes.data(), bytes.size(), kBlockBytes);
    seal.covered = {{0, bytes.size()}};
    commit.seals = {seal};
    commit.unix_ms = RealClock()->UnixMillis();
    return node().Call(std::move(commit)).body.status();
  }

  StatusOr<std::string> Load(SessionId session, Step step, const std::string& name,
                             const std::string& job = "job") {
    engine::event::Open open;
    open.caller = CallerOf(session);
    open.ref = {job, step};
    open.name = name;
    open.mode = engine::OpenMode::kRead;
    open.deadline = Soon();
    node::OpenAnswer answer = node().Open(std::move(open));
    if (!answer.opened.ok()) return answer.opened.status();
    CAIRN_ASSIGN_OR_RETURN(
        std::string bytes,
        node().ReadChunk(CallerOf(session), answer.opened->lease, 0, answer.opened->object.length));
    engine::event::Release release;
    release.caller = CallerOf(session);
    release.leases = {answer.opened->lease};
    CAIRN_RETURN_IF_ERROR(node().Release(std::move(release)).body.status());
    return bytes;
  }

  StatusOr<engine::CheckpointInfo> WaitFor(SessionId session, Step step, engine::Level level) {
    engine::event::Wait wait;
    wait.caller = CallerOf(session);
    wait.ref = {"job", step};
    wait.level = level;
    wait.deadline = Soon();
    node::Answer answer = node().Call(std::move(wait));
    if (!answer.body.ok()) return answer.body.status();
    return std::get<engine::CheckpointInfo>(*answer.body);
  }

  Status PersistNow(SessionId session, Step step) {
    engine::event::PersistNow persist;
    persist.caller = CallerOf(session);
    persist.ref = {"job", step};
    return node().Call(std::move(persist)).body.status();
  }

  int64_t Counter(SessionId session, const std::string& name) {
    const auto state = node().State(CallerOf(session));
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? state->engine.counters.at(name) : 0;
  }

  int64_t calls_ = 0;
};

}  // namespace cairn::testing
