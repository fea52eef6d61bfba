#include "client/cpp/session.h"

#include <algorithm>
#include <utility>

#include "client/cpp/link.h"
#include "client/cpp/open_object.h"
#include "client/cpp/process.h"
#include "client/cpp/status_json.h"
#include "client/cpp/step_writer.h"
#include "client/cpp/store_writer.h"
#include "proto/convert.h"

namespace cairn::client {
namespace {

using AttachmentPtr = std::shared_ptr<Attachment>;

Status ValidateOptions(const ConnectOptions& options) {
  if (options.copy_threads < 1 || options.copy_threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy_threads: ", options.copy_threads, ", must be 1 to 1024"));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("timeout: must be above 0");
  }
  // A session without a job may still ask for status and name jobs itself.
  if (!options.job.empty()) CAIRN_RETURN_IF_ERROR(ValidateJob(options.job));
  if (options.restart < -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "restart: ", options.restart, ", must be 0 or more, or -1 where none is told"));
  }
  if (!options.process.empty() && options.process.size() != kProcessTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("process: ", options.process.size(), " bytes, it has ", kProcessTokenBytes));
  }
  if (options.attempt != 0) CAIRN_RETURN_IF_ERROR(ValidateAttempt(options.attempt));
  if (options.writer != -1) {
    CAIRN_RETURN_IF_ERROR(ValidateWorld(options.writer, options.world_size));
    if (options.local_writers < 1 || options.local_writers > options.world_size) {
      return absl::InvalidArgumentError(absl::StrCat("local_writers: ", options.local_writers,
                                                     ", must be 1 to world_size ",
                                                     options.world_size));
    }
  }
  return absl::OkStatus();
}

// Runs `body`, which puts its answer into `*out`, with exceptions contained.
template <typename T>
StatusOr<T> Answer(absl::FunctionRef<Status(T* out)> body) {
  T out{};
  const Status status = Contain([&] { return body(&out); });
  if (!status.ok()) return status;
  return out;
}

class SessionImpl : public Session {
 public:
  SessionImpl(std::shared_ptr<Link> link, ConnectOptions options)
      : link_(std::move(link)),
        options_(std::move(options)),
        storage_root_(link_->attachment()->storage_root) {}

  ~SessionImpl() override { Close(); }

  void Close() override {
    (void)Contain([&] {
      link_->Close();
      return absl::OkStatus();
    });
  }

  const ConnectOptions& options() const override { return options_; }
  const std::string& storage_root() const override { return storage_root_; }
  SessionId id() const override {
    return link_->InThisProcess() ? link_->attachment()->session : SessionId{0};
  }

  StatusOr<Attempt> ProposeAttempt() override {
    return Answer<Attempt>([&](Attempt* out) {
      const int64_t call = link_->NextCall();
      return CallWithin("chooseAttempt", [&](wire::CairnClient& client, int64_t timeout_ms) {
        *out = client.chooseAttempt(call, timeout_ms);
      });
    });
  }

  StatusOr<Attempt> ChooseAttempt() override {
    CAIRN_ASSIGN_OR_RETURN(const Attempt chosen, ProposeAttempt());
    link_->set_attempt(chosen);
    return chosen;
  }

  Status SetAttempt(Attempt attempt) override {
    CAIRN_RETURN_IF_ERROR(ValidateAttempt(attempt));
    const Attempt now = link_->attempt();
    if (now != 0 && now != attempt) {
      return absl::FailedPreconditionError(
          absl::StrCat("attempt: ", attempt, ", but this session is attempt ", now));
    }
    link_->set_attempt(attempt);
    return absl::OkStatus();
  }

  StatusOr<std::unique_ptr<StepWriter>> BeginStep(Step step, std::optional<Among> among,
                                                  absl::Duration timeout) override {
    return Begin<StepWriterImpl>(step, among, timeout);
  }

  StatusOr<std::unique_ptr<StepWriter>> BeginStored(Step step, std::optional<Among> among,
                                                    absl::Duration timeout) override {
    if (!options_.takes_fds) {
      return absl::UnimplementedError("straight into storage: this session takes no descriptors");
    }
    return Begin<StoreWriter>(step, among, timeout);
  }

  StatusOr<std::unique_ptr<StepWriter>> TakeOver(const std::string& handed_over,
                                                 absl::Duration timeout) override {
    std::unique_ptr<StepWriter> out;
    const Status status = Contain([&]() -> Status {
      CAIRN_RETURN_IF_ERROR(link_->CheckProcess());
      CAIRN_ASSIGN_OR_RETURN(out, StepWriterImpl::TakeOver(link_, handed_over, timeout));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return out;
  }

  StatusOr<std::unique_ptr<OpenObject>> Open(const CheckpointRef& checkpoint,
                                             const std::string& name, OpenMode mode,
                                             absl::Duration timeout) override {
    std::unique_ptr<OpenObject> out;
    const Status status = Contain([&]() -> Status {
      CAIRN_RETURN_IF_ERROR(link_->CheckProcess());
      CAIRN_RETURN_IF_ERROR(ValidateObjectName(name));
      CAIRN_ASSIGN_OR_RETURN(out, OpenObjectImpl::Open(link_, checkpoint, name, mode, timeout));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return out;
  }

  StatusOr<LatestCheckpoint> Latest(const std::string& job) override {
    return Answer<LatestCheckpoint>([&](LatestCheckpoint* out) {
      const std::string& asked = job.empty() ? options_.job : job;
      wire::Latest reply;
      CAIRN_RETURN_IF_ERROR(
          CallWithin("latest", [&](wire::CairnClient& client, int64_t timeout_ms) {
            client.latest(reply, asked, timeout_ms);
          }));
      *out = FromWire(asked, reply);
      return absl::OkStatus();
    });
  }

  StatusOr<LatestCheckpoint> Resume(Step step) override {
    return Answer<LatestCheckpoint>([&](LatestCheckpoint* out) -> Status {
      if (step != kNoStep) CAIRN_RETURN_IF_ERROR(ValidateStep(step));
      const Attempt attempt = link_->attempt();
      if (attempt == 0) {
        return absl::FailedPreconditionError("attempt: this session has none to resume for");
      }
      const int64_t call = link_->NextCall();
      wire::Latest reply;
      const MonotonicNanos deadline = link_->Deadline(absl::ZeroDuration());
      CAIRN_RETURN_IF_ERROR(
          link_->Call("resume", deadline, [&](wire::CairnClient& client, const AttachmentPtr&) {
            client.resume(reply, call, attempt, step, options_.fence,
                          Link::TimeoutMillis(deadline));
          }));
      *out = FromWire(options_.job, reply);
      return absl::OkStatus();
    });
  }

  StatusOr<LatestCheckpoint> Use(const CheckpointRef& checkpoint, bool fence) override {
    return Answer<LatestCheckpoint>([&](LatestCheckpoint* out) -> Status {
      const wire::CheckpointRef ref = ToWire(checkpoint, options_.job);
      const int64_t call = link_->NextCall();
      wire::Latest reply;
      CAIRN_RETURN_IF_ERROR(CallWithin("use", [&](wire::CairnClient& client, int64_t timeout_ms) {
        client.useCheckpoint(reply, call, ref, fence, timeout_ms);
      }));
      *out = FromWire(ref.job, reply);
      return absl::OkStatus();
    });
  }

  StatusOr<CheckpointInfo> Stat(const CheckpointRef& checkpoint) override {
    return Answer<CheckpointInfo>([&](CheckpointInfo* out) -> Status {
      const wire::CheckpointRef ref = ToWire(checkpoint, options_.job);
      wire::CheckpointInfo reply;
      CAIRN_RETURN_IF_ERROR(
          CallWithin("statCheckpoint", [&](wire::CairnClient& client, int64_t timeout_ms) {
            client.statCheckpoint(reply, ref, timeout_ms);
          }));
      CAIRN_ASSIGN_OR_RETURN(*out, FromWire(ref.job, reply));
      return absl::OkStatus();
    });
  }

  StatusOr<ObjectInfo> StatObject(const CheckpointRef& checkpoint,
                                  const std::string& name) override {
    return Answer<ObjectInfo>([&](ObjectInfo* out) -> Status {
      const wire::CheckpointRef ref = ToWire(checkpoint, options_.job);
      wire::ObjectInfo reply;
      CAIRN_RETURN_IF_ERROR(CallWithin("stat", [&](wire::CairnClient& client, int64_t timeout_ms) {
        client.stat(reply, ref, name, timeout_ms);
      }));
      CAIRN_ASSIGN_OR_RETURN(*out, FromWire(reply));
      return absl::OkStatus();
    });
  }

  StatusOr<Listing> List(const std::string& path) override {
    return Answer<Listing>([&](Listing* out) -> Status {
      constexpr int32_t kPage = 1000;
      const std::string job = path.substr(0, path.find('/'));
      const MonotonicNanos deadline = link_->Deadline(absl::ZeroDuration());  // of all pages
      std::string cursor;
      do {
        wire::ListReply reply;
        CAIRN_RETURN_IF_ERROR(
            link_->Call("ls", deadline, [&](wire::CairnClient& client, const AttachmentPtr&) {
              client.ls(reply, path, cursor, kPage, Link::TimeoutMillis(deadline));
            }));
        for (std::string& name : reply.jobs) out->jobs.push_back(std::move(name));
        for (const auto& item : reply.checkpoints) {
          CAIRN_ASSIGN_OR_RETURN(CheckpointInfo info, FromWire(job, item));
          out->checkpoints.push_back(std::move(info));
        }
        for (const auto& item : reply.objects) {
          CAIRN_ASSIGN_OR_RETURN(ObjectInfo info, FromWire(item));
          out->objects.push_back(std::move(info));
        }
        if (!reply.next_cursor.empty() && reply.next_cursor == cursor) {
          return absl::InternalError("ls: the daemon's cursor does not move");
        }
        cursor = std::move(reply.next_cursor);
      } while (!cursor.empty());
      return absl::OkStatus();
    });
  }

  StatusOr<CheckpointInfo> Wait(const CheckpointRef& checkpoint, Level level,
                                absl::Duration timeout) override {
    return WaitFor(ToWire(checkpoint, options_.job), level, {}, timeout);
  }

  StatusOr<CheckpointInfo> WaitAfter(Step step, absl::Duration timeout, Attempt head,
                                     Revision revision) override {
    if (step < kNoStep) {
      return absl::InvalidArgumentError(absl::StrCat("step: ", step, " is below -1"));
    }
    return WaitFor(ToWire(CheckpointRef{}, options_.job), Level::kCached, {step, head, revision},
                   timeout);
  }

  Status Persist(const CheckpointRef& checkpoint) override {
    const wire::CheckpointRef ref = ToWire(checkpoint, options_.job);
    const int64_t call = link_->NextCall();
    return Call("persist", [&](wire::CairnClient& client) { client.persist(call, ref); });
  }

  Status Remove(const CheckpointRef& checkpoint, bool memory_only, bool force) override {
    const wire::CheckpointRef ref = ToWire(checkpoint, options_.job);
    const int64_t call = link_->NextCall();
    return CallWithin("remove", [&](wire::CairnClient& client, int64_t timeout_ms) {
      client.remove(call, ref, memory_only, force, timeout_ms);
    });
  }

  Status Pin(const CheckpointRef& checkpoint, bool pinned) override {
    const wire::CheckpointRef ref = ToWire(checkpoint, options_.job);
    const int64_t call = link_->NextCall();
    return Call("pin", [&](wire::CairnClient& client) { client.pin(call, ref, pinned); });
  }

  Status SetPolicy(const JobPolicy& policy) override {
    const wire::JobPolicy wanted = ToWire(policy);
    const int64_t call = link_->NextCall();
    return Call("setPolicy",
                [&](wire::CairnClient& client) { client.setPolicy(call, options_.job, wanted); });
  }

  StatusOr<PolicyPreview> PreviewPolicy(const std::string& job,
                                        const std::optional<JobPolicy>& policy) override {
    return Answer<PolicyPreview>([&](PolicyPreview* out) -> Status {
      wire::PreviewRequest request;
      request.__set_job(job.empty() ? options_.job : job);
      if (policy.has_value()) request.__set_policy(ToWire(*policy));
      wire::PolicyPreview reply;
      CAIRN_RETURN_IF_ERROR(
          CallWithin("previewPolicy", [&](wire::CairnClient& client, int64_t timeout_ms) {
            client.previewPolicy(reply, request, timeout_ms);
          }));
      CAIRN_ASSIGN_OR_RETURN(*out, FromWire(request.job, reply));
      return absl::OkStatus();
    });
  }

  StatusOr<std::string> StatusJson() override {
    return Answer<std::string>([&](std::string* out) {
      wire::NodeStatus reply;
      CAIRN_RETURN_IF_ERROR(
          Call("status", [&](wire::CairnClient& client) { client.status(reply); }));
      *out = ToJson(reply);
      return absl::OkStatus();
    });
  }

  StatusOr<RingInfo> Ring() override {
    return Answer<RingInfo>([&](RingInfo* out) {
      wire::RingInfo reply;
      CAIRN_RETURN_IF_ERROR(Call("ring", [&](wire::CairnClient& client) { client.ring(reply); }));
      out->epoch = reply.epoch;
      out->rank = reply.rank;
      out->problem = reply.problem;
      for (const wire::RingSeat& seat : reply.seats) {
        out->seats.push_back(
            {seat.rank, seat.taken, seat.incarnation, seat.address, seat.beat_age_ms});
      }
      return absl::OkStatus();
    });
  }

  StatusOr<std::string> IndexJson(const std::string& job, int limit,
                                  absl::Duration timeout) override {
    return Answer<std::string>([&](std::string* out) {
      wire::IndexRequest request;
      request.job = job;
      constexpr int kMostAtOnce = 1000;
      request.limit = job.empty() && limit > 0 ? kMostAtOnce : limit;
      // Sooner than this side gives up, so that the daemon says why there is no answer.
      const absl::Duration wait = std::min(timeout, options().timeout * 4 / 5);
      request.timeout_ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(wait));
      wire::IndexReply all;
      for (;;) {
        wire::IndexReply page;
        CAIRN_RETURN_IF_ERROR(
            Call("index", [&](wire::CairnClient& client) { client.index(page, request); }));
        for (wire::IndexJob& found : all.jobs) page.jobs.push_back(std::move(found));
        all = std::move(page);
        if (!job.empty() || !all.more) break;
        if (all.next_cursor <= request.cursor) {
          return absl::UnavailableError("catalog: it answers too slowly to list the jobs");
        }
        request.cursor = all.next_cursor;
      }
      std::sort(all.jobs.begin(), all.jobs.end(),
                [](const wire::IndexJob& a, const wire::IndexJob& b) { return a.job < b.job; });
      *out = ToJson(all);
      return absl::OkStatus();
    });
  }

  StatusOr<int64_t> ResizeRing(int32_t size) override {
    return Answer<int64_t>([&](int64_t* epoch) {
      const int64_t call = link_->NextCall();
      return Call("resizeRing",
                  [&](wire::CairnClient& client) { *epoch = client.resizeRing(call, size); });
    });
  }

  Status Drain(bool on) override {
    const int64_t call = link_->NextCall();
    return Call("drain", [&](wire::CairnClient& client) { client.drain(call, on); });
  }

 private:
  template <typename Writer>
  StatusOr<std::unique_ptr<StepWriter>> Begin(Step step, std::optional<Among> among,
                                              absl::Duration timeout) {
    std::unique_ptr<StepWriter> out;
    const Status status = Contain([&]() -> Status {
      CAIRN_RETURN_IF_ERROR(link_->CheckProcess());
      CAIRN_RETURN_IF_ERROR(ValidateStep(step));
      StepIdentity identity;
      identity.step = step;
      identity.attempt = link_->attempt();
      if (identity.attempt == 0) {
        return absl::FailedPreconditionError(
            "attempt: this session has none; connect with one, ChooseAttempt or SetAttempt first");
      }
      if (options_.writer < 0) {
        return absl::FailedPreconditionError("writer: this session only reads");
      }
      identity.writer = among.has_value() ? among->writer : options_.writer;
      identity.world_size = among.has_value() ? among->writers : options_.world_size;
      CAIRN_RETURN_IF_ERROR(ValidateWorld(identity.writer, identity.world_size));
      identity.revision = EnterStep(options_.job, identity.attempt, identity.writer, step);
      out = std::make_unique<Writer>(link_, identity, timeout);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return out;
  }

  Status Call(absl::string_view what, absl::FunctionRef<void(wire::CairnClient&)> body) {
    return CallWithin(what, [&](wire::CairnClient& client, int64_t) { body(client); });
  }
  // The daemon says within `timeout_ms` why it cannot answer.
  Status CallWithin(absl::string_view what,
                    absl::FunctionRef<void(wire::CairnClient&, int64_t timeout_ms)> body) {
    return Contain([&] {
      const MonotonicNanos deadline = link_->Deadline(absl::ZeroDuration());
      return link_->Call(what, deadline, [&](wire::CairnClient& client, const AttachmentPtr&) {
        body(client, Link::TimeoutMillis(deadline));
      });
    });
  }

  struct Cursor {
    Step after = -1;
    Attempt head = 0;
    Revision revision = -1;
  };
  StatusOr<CheckpointInfo> WaitFor(const wire::CheckpointRef& ref, Level level,
                                   const Cursor& cursor, absl::Duration timeout) {
    return Answer<CheckpointInfo>([&](CheckpointInfo* out) -> Status {
      const MonotonicNanos deadline = link_->Deadline(timeout);
      // The daemon says when the time is up; a moment more, so that its answer is heard rather than
      // missed.
      constexpr MonotonicNanos kGrace = kNanosPerSecond;
      wire::CheckpointInfo reply;
      CAIRN_RETURN_IF_ERROR(link_->Call(
          "wait", deadline + kGrace, [&](wire::CairnClient& client, const AttachmentPtr&) {
            client.wait(reply, ref, ToWire(level), Link::TimeoutMillis(deadline), cursor.after,
                        cursor.head, cursor.revision);
          }));
      CAIRN_ASSIGN_OR_RETURN(*out, FromWire(ref.job, reply));
      return absl::OkStatus();
    });
  }

  const std::shared_ptr<Link> link_;
  const ConnectOptions options_;
  const std::string storage_root_;  // as hello named it first
};

}  // namespace

StatusOr<std::shared_ptr<Session>> Session::Connect(const ConnectOptions& options) {
  std::shared_ptr<Session> session;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(ValidateOptions(options));
    CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<Link> link, Link::Connect(options));
    session = std::make_shared<SessionImpl>(std::move(link), options);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return session;
}

}  // namespace cairn::client
