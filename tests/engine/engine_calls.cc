// Calls of the clients of the small node.
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {

Caller EngineTest::From(SessionId session) {
  const RequestId request = ++last_request;
  asked[request] = session;
  const auto at = sessions.find(session);
  return {request, session, at == sessions.end() ? 1000 : at->second.uid,
          at == sessions.end() ? 1000 : at->second.uid};
}

StatusOr<reply::Body> EngineTest::AnswerTo(RequestId request) {
  const auto at = replies.find(request);
  if (at == replies.end()) return absl::InternalError("not answered yet");
  return at->second.body;
}

StatusOr<SessionId> EngineTest::TryHello(Who who) {
  event::Hello hello;
  hello.caller = From(0);
  hello.caller.uid = hello.caller.gid = who.uid;
  hello.secret = "secret";
  hello.pid = who.pid != 0 ? who.pid : ++last_pid;
  hello.process = who.process.empty() ? absl::StrCat("process-", hello.pid) : who.process;
  hello.job = who.job;
  hello.attempt = who.attempt;
  hello.writer = who.writer;
  hello.world_size = who.world_size;
  hello.local_writers = who.local_writers;
  hello.takes_fds = who.takes_fds;
  hello.policy = who.policy;
  hello.run = who.run;
  hello.restart = who.restart;
  Apply(hello);
  StatusOr<reply::Hello> reply = Take<reply::Hello>(hello.caller.request);
  if (!reply.ok()) return reply.status();
  sessions[reply->session] = who;
  return reply->session;
}

SessionId EngineTest::Hello(Who who) {
  StatusOr<SessionId> session = TryHello(std::move(who));
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *session : 0;
}

void EngineTest::Die(SessionId session) {
  for (auto& [slab, who] : mapped) who.erase(session);
  for (auto at = locks.begin(); at != locks.end();) {
    at = at->second.second == session ? locks.erase(at) : std::next(at);
  }
  sessions.erase(session);
  Apply(event::SessionEnded{session});
}

PartKey EngineTest::PartOf(SessionId session, Step step, Revision revision) {
  const Who& who = sessions.at(session);
  return {{who.job, step, who.attempt, revision}, who.writer};
}

event::Create EngineTest::CreateOf(SessionId session, const PartKey& part,
                                   const std::vector<Spec>& specs) {
  event::Create create;
  create.caller = From(session);
  create.call = ++last_call;
  create.part = part;
  create.world_size = sessions.at(session).world_size;
  for (const Spec& spec : specs) create.objects.push_back({spec.name, spec.length});
  create.deadline = Soon();
  create.unmapped = TakeUnmapped(session);
  create.fence = fences;
  return create;
}

std::vector<SlabId> EngineTest::TakeUnmapped(SessionId session) {
  std::vector<SlabId> slabs = std::exchange(unmapped[session], {});
  for (SlabId slab : slabs) mapped[slab].erase(session);
  return slabs;
}

StatusOr<reply::Create> EngineTest::Create(SessionId session, const PartKey& part,
                                           const std::vector<Spec>& specs) {
  for (int round = 0;; ++round) {
    event::Create create = CreateOf(session, part, specs);
    Apply(create);
    StatusOr<reply::Create> reply = Take<reply::Create>(create.caller.request);
    if (!reply.ok()) return reply;
    for (SlabId slab : reply->retire) unmapped[session].push_back(slab);
    if (reply->extents.size() == specs.size()) return reply;
    if (round == 8) return absl::InternalError("asked to unmap after eight rounds");
  }
}

event::Seal EngineTest::SealOf(const Spec& spec) {
  event::Seal seal;
  seal.name = spec.name;
  seal.length = spec.length;
  seal.block_crcs.assign(BlockCount(spec.length, kBlockBytes), 7);
  if (spec.length > 0) seal.covered = {{0, spec.length}};
  return seal;
}

Status EngineTest::Seal(SessionId session, const PartKey& part, const std::vector<Spec>& specs) {
  event::SealObjects seals{From(session), ++last_call, part, {}};
  for (const Spec& spec : specs) seals.seals.push_back(SealOf(spec));
  Apply(seals);
  return AnswerTo(seals.caller.request).status();
}

event::Commit EngineTest::CommitOf(SessionId session, const PartKey& part,
                                   const std::vector<Spec>& specs) {
  event::Commit commit;
  commit.caller = From(session);
  commit.call = ++last_call;
  commit.part = part;
  commit.world_size = sessions.at(session).world_size;
  for (const Spec& spec : specs) commit.seals.push_back(SealOf(spec));
  commit.unmapped = TakeUnmapped(session);
  commit.unix_ms = kUnix;
  commit.deadline = Soon();
  commit.fence = fences;
  return commit;
}

StatusOr<reply::Commit> EngineTest::Commit(SessionId session, const PartKey& part,
                                           const std::vector<Spec>& specs) {
  const event::Commit commit = CommitOf(session, part, specs);
  Apply(commit);
  return Take<reply::Commit>(commit.caller.request);
}

Status EngineTest::TrySave(SessionId session, Step step, const std::vector<Spec>& specs,
                           Revision revision) {
  const PartKey part = PartOf(session, step, revision);
  CAIRN_RETURN_IF_ERROR(Create(session, part, specs).status());
  return Commit(session, part, specs).status();
}

void EngineTest::Save(SessionId session, Step step, const std::vector<Spec>& specs,
                      Revision revision) {
  const Status status = TrySave(session, step, specs, revision);
  EXPECT_TRUE(status.ok()) << status;
}

event::Open EngineTest::OpenOf(SessionId session, Step step, const std::string& name,
                               OpenMode mode) {
  event::Open open;
  open.caller = From(session);
  open.ref.job = sessions.at(session).job;
  open.ref.step = step;
  open.name = name;
  open.mode = mode;
  open.deadline = Soon();
  return open;
}

StatusOr<reply::Open> EngineTest::Open(SessionId session, Step step, const std::string& name,
                                       OpenMode mode) {
  const event::Open open = OpenOf(session, step, name, mode);
  Apply(open);
  StatusOr<reply::Body> body = AnswerTo(open.caller.request);
  if (!body.ok()) return body.status();
  if (!std::holds_alternative<reply::Open>(*body)) return absl::InternalError("from storage");
  return std::get<reply::Open>(*body);
}

StatusOr<reply::OpenStored> EngineTest::OpenStored(SessionId session, Step step,
                                                   const std::string& name) {
  const event::Open open = OpenOf(session, step, name);
  Apply(open);
  StatusOr<reply::Body> body = AnswerTo(open.caller.request);
  if (!body.ok()) return body.status();
  if (!std::holds_alternative<reply::OpenStored>(*body)) return absl::InternalError("from memory");
  return std::get<reply::OpenStored>(*body);
}

void EngineTest::Release(SessionId session, LeaseId lease, bool closes) {
  if (closes) locks.erase(lease);
  Apply(event::Release{From(session), {lease}});
}

StatusOr<reply::Latest> EngineTest::Latest(SessionId session, const std::string& job) {
  event::Latest latest{From(session), job, Soon()};
  Apply(latest);
  return Take<reply::Latest>(latest.caller.request);
}

Step EngineTest::LatestStep(SessionId session) {
  StatusOr<reply::Latest> latest = Latest(session);
  return latest.ok() ? latest->key.step : kNoStep;
}

StatusOr<CheckpointInfo> EngineTest::Stat(SessionId session, Step step, Attempt attempt) {
  event::StatCheckpoint stat{From(session), {sessions.at(session).job, step, attempt}, Soon()};
  Apply(stat);
  return Take<CheckpointInfo>(stat.caller.request);
}

reply::Status EngineTest::Status_() {
  event::Status status{From(0), /*of_all=*/true};
  Apply(status);
  return *Take<reply::Status>(status.caller.request);
}

RequestId EngineTest::Wait(SessionId session, Step step, Level level, Step after) {
  event::Wait wait{From(session), {"job", step}, level, after, Soon()};
  Apply(wait);
  return wait.caller.request;
}

RequestId EngineTest::Ask(Event event, const Caller& caller) {
  Apply(std::move(event));
  return caller.request;
}

}  // namespace cairn::engine
