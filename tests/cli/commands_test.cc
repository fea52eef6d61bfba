// Whole command lines against a session of the test's own: what is asked of the daemon, what is
// printed, which exit code leaves.
//
// One file: every command is tried in the same small vocabulary, which is the fixture below.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "client/cli/context.h"
#include "client/cli/new_file.h"
#include "client/cli/render.h"
#include "common/checksum.h"
#include "common/safetensors.h"

namespace {

// Counted down by each rename(); at 0 something happens in it.
int interrupted_rename = 0, failing_rename = 0;

}  // namespace

// In the place of libc's.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (failing_rename > 0 && --failing_rename == 0) {
    errno = ENOSPC;
    return -1;
  }
  const int done = renameat(AT_FDCWD, from, AT_FDCWD, to);
  if (interrupted_rename > 0 && --interrupted_rename == 0) raise(SIGINT);
  return done;
}

namespace cairn::cli {
namespace {

using client::CheckpointInfo;
using client::CheckpointRef;
using testing::HasSubstr;
using testing::Not;

// What a daemon would hold, small enough to keep in a map, and what was asked of it.
struct World {
  std::map<std::string, std::map<Step, std::map<std::string, std::string>>> jobs;
  std::map<Step, int32_t> world_size;
  std::set<Step> abandoned, incomplete;
  std::string status = "{}";
  StatusOr<client::RingInfo> ring = absl::FailedPreconditionError("ring: it is a list");
  std::vector<std::string> after_drain;  // what status tells after each `drain`
  // IndexReply as JSON, or why there is none.
  StatusOr<std::string> index = absl::UnavailableError("catalog: this node shares none");
  Status latest;  // not OK: why there is none
  PolicyPreview preview;
  std::vector<std::string> calls;
  std::vector<client::ConnectOptions> connections;
  Status refuse_remove;  // without force
  std::set<Step> pinned;
  std::set<Step> gone_meanwhile;  // shown, and not there any more when it is to be removed
  Status wait_result;
  bool corrupt = false;
  std::function<void()> while_writing;  // what another does meanwhile
};

class FakeWriter : public client::StepWriter {
 public:
  FakeWriter(World* world, std::string job, Step step)
      : world_(world), job_(std::move(job)), step_(step) {}
  Status Write(const std::string& name, ObjectKind kind,
               absl::Span<const client::Source> sources) override {
    return WriteMany({{name, kind, {sources.begin(), sources.end()}}});
  }
  Status WriteZip(const std::string&, ObjectKind, const ZipPlan&,
                  absl::Span<const client::Source>) override {
    return absl::UnimplementedError("not asked for here");
  }
  StatusOr<std::vector<client::PiecePlace>> WritePieces(const std::string&, ObjectKind,
                                                        absl::Span<const client::Piece>) override {
    return absl::UnimplementedError("not asked for here");
  }
  Status WriteMany(absl::Span<const Item> items) override {
    for (const Item& item : items) {
      std::string& bytes = written_[item.name];
      for (const auto& source : item.sources)
        bytes.append(static_cast<const char*>(source.data), source.length);
      total_ += bytes.size();
    }
    if (world_->while_writing) world_->while_writing();
    return absl::OkStatus();
  }
  StatusOr<client::CommitResult> Commit(const std::map<std::string, std::string>&) override {
    world_->jobs[job_][step_] = written_;
    world_->calls.push_back("commit");
    return client::CommitResult{"d1", true};
  }
  Status SetAside(const Room&, absl::Duration) override { return absl::OkStatus(); }
  StatusOr<Buffer> Reserve(const std::string&, ObjectKind, uint64_t) override {
    return absl::UnimplementedError("not asked for here");
  }
  Status Seal(const std::string&) override {
    return absl::UnimplementedError("not asked for here");
  }
  void CopyBeside(const std::atomic<bool>*) override {}
  Status Abort() override {
    world_->calls.push_back("abort");
    return absl::OkStatus();
  }
  StatusOr<std::string> HandOver() override {
    return absl::UnimplementedError("not asked for here");
  }
  Revision revision() const override { return 0; }
  Step step() const override { return step_; }
  uint64_t bytes_written() const override { return total_; }

 private:
  World* world_;
  std::string job_;
  Step step_;
  std::map<std::string, std::string> written_;
  uint64_t total_ = 0;
};

class FakeObject : public client::OpenObject {
 public:
  FakeObject(World* world, CheckpointKey key, std::string name, std::string bytes)
      : world_(world), key_(std::move(key)), bytes_(std::move(bytes)) {
    info_.name = std::move(name);
    info_.length = bytes_.size();
    for (uint64_t at = 0; at < bytes_.size(); at += kBlockBytes) {
      const std::string block = bytes_.substr(at, kBlockBytes);
      info_.block_crcs.push_back(Crc32c(0, block.data(), block.size()));
    }
  }
  const client::ObjectInfo& info() const override { return info_; }
  const CheckpointKey& checkpoint() const override { return key_; }
  bool from_storage() const override { return false; }
  std::string memory() const override { return ""; }
  Status ReadInto(void* into) override { return ReadRange(0, bytes_.size(), into); }
  Status ReadRange(uint64_t offset, uint64_t length, void* into) override {
    if (world_->corrupt) return absl::DataLossError("block 0 does not match its checksum");
    memcpy(into, bytes_.data() + offset, length);
    return absl::OkStatus();
  }
  Status ReadPieces(absl::Span<const client::StridedPiece>) override {
    return absl::UnimplementedError("not asked for here");
  }
  Status PeekRanges(absl::Span<const client::ObjectRange>, void*) override {
    return absl::UnimplementedError("not asked for here");
  }
  Status ReadUnchecked(uint64_t block, void* into, uint32_t* crc) override {
    const std::string bytes = bytes_.substr(block * kBlockBytes, kBlockBytes);
    memcpy(into, bytes.data(), bytes.size());
    *crc = Crc32c(0, bytes.data(), bytes.size()) + (world_->corrupt ? 1 : 0);
    return absl::OkStatus();
  }
  StatusOr<View> Map() override { return absl::UnimplementedError("not asked for here"); }
  StatusOr<std::string> Path() override { return absl::UnimplementedError("not asked for here"); }
  Status Verify() override {
    return world_->corrupt ? absl::DataLossError("block 0 does not match its checksum")
                           : absl::OkStatus();
  }

 private:
  World* world_;
  CheckpointKey key_;
  std::string bytes_;
  client::ObjectInfo info_;
};

class FakeSession : public client::Session {
 public:
  FakeSession(World* world, client::ConnectOptions options)
      : world_(world), options_(std::move(options)) {}
  void Close() override {}
  const client::ConnectOptions& options() const override { return options_; }
  const std::string& storage_root() const override { return root_; }
  SessionId id() const override { return 1; }
  StatusOr<Attempt> ProposeAttempt() override { return ChooseAttempt(); }
  StatusOr<Attempt> ChooseAttempt() override {
    world_->calls.push_back("choose attempt");
    return 7;
  }
  Status SetAttempt(Attempt) override { return absl::OkStatus(); }
  StatusOr<std::unique_ptr<client::StepWriter>> BeginStep(Step step,
                                                          std::optional<client::Among> among,
                                                          absl::Duration) override {
    EXPECT_TRUE(among.has_value() && among->writers == 1 && among->writer == 0);
    return std::make_unique<FakeWriter>(world_, options_.job, step);
  }
  StatusOr<std::unique_ptr<client::StepWriter>> BeginStored(Step, std::optional<client::Among>,
                                                            absl::Duration) override {
    return absl::UnimplementedError("not asked for here");
  }
  StatusOr<std::unique_ptr<client::StepWriter>> TakeOver(const std::string&,
                                                         absl::Duration) override {
    return absl::UnimplementedError("not asked for here");
  }
  StatusOr<std::unique_ptr<client::OpenObject>> Open(const CheckpointRef& ref,
                                                     const std::string& name, client::OpenMode,
                                                     absl::Duration) override {
    CAIRN_ASSIGN_OR_RETURN(const CheckpointInfo info, Stat(ref));
    const auto& objects = world_->jobs[ref.job][info.key.step];
    if (!objects.count(name))
      return absl::NotFoundError(absl::StrCat("name: \"", name, "\" is not there"));
    return std::make_unique<FakeObject>(world_, info.key, name, objects.at(name));
  }
  StatusOr<client::LatestCheckpoint> Latest(const std::string& job) override {
    CAIRN_RETURN_IF_ERROR(world_->latest);
    CAIRN_ASSIGN_OR_RETURN(const CheckpointInfo info, Stat({job}));
    client::LatestCheckpoint latest;
    latest.key = info.key;
    latest.source = "memory";
    return latest;
  }
  StatusOr<client::LatestCheckpoint> Resume(Step) override {
    return absl::UnimplementedError("not asked for here");
  }
  StatusOr<client::LatestCheckpoint> Use(const CheckpointRef& ref, bool fence) override {
    world_->calls.push_back(fence ? "use fence" : "use");
    CAIRN_ASSIGN_OR_RETURN(const CheckpointInfo info, Stat(ref));
    client::LatestCheckpoint used;
    used.key = info.key;
    used.head = 99;
    used.recorded = fence;
    return used;
  }
  StatusOr<CheckpointInfo> Stat(const CheckpointRef& ref) override {
    const auto job = world_->jobs.find(ref.job);
    if (job == world_->jobs.end())
      return absl::NotFoundError(absl::StrCat("job: \"", ref.job, "\" is not known"));
    const Step step = ref.step == kNoStep ? job->second.rbegin()->first : ref.step;
    const auto found = job->second.find(step);
    if (found == job->second.end())
      return absl::NotFoundError(absl::StrCat("step: ", step, " is not there"));
    CheckpointInfo info;
    info.key = {ref.job, step, 5, 0};
    info.world_size = world_->world_size.count(step) ? world_->world_size[step] : 1;
    info.objects = found->second.size();
    for (const auto& [name, bytes] : found->second) info.bytes += bytes.size();
    info.facts.complete = !world_->incomplete.contains(step);
    info.facts.resident = true;
    info.facts.abandoned = world_->abandoned.contains(step);
    info.facts.pinned = world_->pinned.contains(step);
    info.created_unix_ms = RealClock()->UnixMillis() - 3 * 3600 * 1000 - 1000;
    info.on_line = !info.facts.abandoned;
    info.level = client::Level::kCached;
    return info;
  }
  StatusOr<client::ObjectInfo> StatObject(const CheckpointRef& ref,
                                          const std::string& name) override {
    CAIRN_ASSIGN_OR_RETURN(auto object,
                           Open(ref, name, client::OpenMode::kRead, absl::ZeroDuration()));
    return object->info();
  }
  StatusOr<client::Listing> List(const std::string& path) override {
    client::Listing listing;
    if (path.empty()) {
      for (const auto& [job, steps] : world_->jobs) listing.jobs.push_back(job);
      return listing;
    }
    // The fake has one attempt of each step.
    CAIRN_ASSIGN_OR_RETURN(const Target target,
                           ParseTarget(path.substr(0, path.find('@')), TargetNeeds::kJob));
    if (!target.has_step) {
      if (!world_->jobs.count(target.job)) return absl::NotFoundError("job: not known");
      for (const auto& [step, objects] : world_->jobs[target.job]) {
        listing.checkpoints.push_back(*Stat({target.job, step}));
      }
      return listing;
    }
    CAIRN_ASSIGN_OR_RETURN(const CheckpointInfo info, Stat(target.checkpoint));
    for (const auto& [name, bytes] : world_->jobs[target.job][info.key.step]) {
      listing.objects.push_back({});
      listing.objects.back().name = name;
      listing.objects.back().length = bytes.size();
      if (absl::EndsWith(name, ".safetensors")) {
        listing.objects.back().kind = ObjectKind::kSafetensors;
      }
    }
    return listing;
  }
  StatusOr<CheckpointInfo> Wait(const CheckpointRef& ref, client::Level level,
                                absl::Duration timeout) override {
    world_->calls.push_back(absl::StrCat("wait ", std::string(client::LevelName(level)), " ",
                                         absl::ToInt64Seconds(timeout + absl::Milliseconds(500)),
                                         " s"));
    CAIRN_RETURN_IF_ERROR(world_->wait_result);
    return Stat(ref);
  }
  StatusOr<CheckpointInfo> WaitAfter(Step step, absl::Duration, Attempt, Revision) override {
    for (const auto& [candidate, objects] : world_->jobs[options_.job]) {
      if (candidate > step) return Stat({options_.job, candidate});
    }
    return absl::DeadlineExceededError("nothing newer");
  }
  Status Persist(const CheckpointRef& ref) override {
    world_->calls.push_back("persist");
    return Stat(ref).status();
  }
  Status Remove(const CheckpointRef& ref, bool memory_only, bool force) override {
    world_->calls.push_back(
        absl::StrCat("remove ", ref.step, memory_only ? " memory" : "", force ? " force" : ""));
    if (!force) CAIRN_RETURN_IF_ERROR(world_->refuse_remove);
    if (world_->gone_meanwhile.contains(ref.step)) return absl::NotFoundError("step: is unknown");
    world_->jobs[ref.job].erase(ref.step);
    return absl::OkStatus();
  }
  Status Pin(const CheckpointRef& ref, bool pinned) override {
    world_->calls.push_back(pinned ? "pin" : "unpin");
    return Stat(ref).status();
  }
  Status SetPolicy(const JobPolicy& policy) override {
    world_->calls.push_back(absl::StrCat("policy ", options_.job,
                                         " mode=", static_cast<int>(policy.mode),
                                         " every=", policy.every, " keep_last=", policy.keep_last));
    return absl::OkStatus();
  }
  StatusOr<PolicyPreview> PreviewPolicy(const std::string& job,
                                        const std::optional<JobPolicy>& policy) override {
    const int64_t keep_last = policy.has_value() ? policy->keep_last : 0;
    world_->calls.push_back(absl::StrCat("preview ", job, " keep_last=", keep_last));
    return world_->preview;
  }
  StatusOr<std::string> StatusJson() override { return world_->status; }
  StatusOr<client::RingInfo> Ring() override { return world_->ring; }
  StatusOr<int64_t> ResizeRing(int32_t size) override {
    world_->calls.push_back(absl::StrCat("resize ", size));
    return 7;
  }
  Status Drain(bool on) override {
    world_->calls.push_back(absl::StrCat("drain ", on ? "on" : "off"));
    if (!world_->after_drain.empty()) {
      world_->status = world_->after_drain.front();
      world_->after_drain.erase(world_->after_drain.begin());
    }
    return absl::OkStatus();
  }
  StatusOr<std::string> IndexJson(const std::string& job, int limit, absl::Duration) override {
    world_->calls.push_back(absl::StrCat("index ", job, " limit=", limit));
    return world_->index;
  }

 private:
  World* world_;
  client::ConnectOptions options_;
  std::string root_;
};

class CommandsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-cli-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    Listen();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Something listens, as a daemon would; what answers is the fake.
  void Listen() {
    listener_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ / "sock";
    memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_.get(), 64), 0);
  }
  void DaemonIsDown() { listener_.Reset(); }

  int Cairn(std::vector<std::string> arguments) {
    out_.str("");
    err_.str("");
    Context context;
    context.console.out = &out_;
    context.console.err = &err_;
    context.console.out_terminal = out_terminal_;
    context.console.ask = ask_;
    context.console.in_fd = in_fd_;
    context.console.out_fd = out_fd_;
    context.console.pause = pause_;
    context.clock = RealClock();
    context.connect =
        [this](
            const client::ConnectOptions& options) -> StatusOr<std::shared_ptr<client::Session>> {
      world_.connections.push_back(options);
      return std::shared_ptr<client::Session>(std::make_shared<FakeSession>(&world_, options));
    };
    std::vector<std::string> all = {"--socket", directory_ / "sock"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return cli::Run(all, &context);
  }
  std::string File(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return directory_ / name;
  }
  std::string Contents(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string Out() const { return out_.str(); }
  std::string Err() const { return err_.str(); }
  Json OutJson() const { return Json::parse(out_.str()); }

  std::filesystem::path directory_;
  UniqueFd listener_;
  World world_;
  std::ostringstream out_, err_;
  bool out_terminal_ = false;
  std::function<bool(const std::string&)> ask_;
  std::function<bool(absl::Duration)> pause_;
  int in_fd_ = -1, out_fd_ = 1;
};

TEST_F(CommandsTest, NoCommandOrAnUnknownOneIsExitCode2) {
  EXPECT_EQ(Cairn({}), 2);
  EXPECT_THAT(Err(), HasSubstr("cairn: "));
  EXPECT_EQ(Cairn({"frobnicate"}), 2);
  EXPECT_THAT(Err(), HasSubstr("frobnicate"));
  EXPECT_EQ(Cairn({"ls", "--frobnicate"}), 2);
  EXPECT_EQ(Cairn({"get", "onlyone"}), 2);
}

TEST_F(CommandsTest, HelpHasExamplesAndIsNoError) {
  EXPECT_EQ(Cairn({"--help"}), 0);
  EXPECT_THAT(Out(), HasSubstr("cairn get run7/latest/model.pt model.pt"));
  EXPECT_THAT(Out(), HasSubstr("CAIRN_SOCKET"));
  EXPECT_EQ(Cairn({"wait", "--help"}), 0);
  EXPECT_THAT(Out(), HasSubstr("--level"));
}

TEST_F(CommandsTest, NobodyListeningIsExitCode6AtOnceAndNamesTheSocket) {
  DaemonIsDown();
  for (const char* command : {"status", "ls"}) {
    EXPECT_EQ(Cairn({command}), 6);
    EXPECT_THAT(Err(), HasSubstr((directory_ / "sock").string()));
  }
  EXPECT_TRUE(world_.connections.empty());
}

TEST_F(CommandsTest, FindingCommandsEnterNoJob) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"ls", "run7"}), 0) << Err();
  EXPECT_EQ(Cairn({"latest", "run7"}), 0) << Err();
  EXPECT_EQ(Cairn({"stat", "run7/3"}), 0) << Err();
  EXPECT_EQ(Cairn({"wait", "run7/3", "--level", "cached"}), 0) << Err();
  for (const auto& options : world_.connections) {
    EXPECT_EQ(options.job, "");
    EXPECT_EQ(options.writer, -1);
  }
}

TEST_F(CommandsTest, LsShowsJobsThenCheckpointsThenObjects) {
  world_.jobs["run7"][3]["model.bin"] = std::string(2048, 'x');
  EXPECT_EQ(Cairn({"ls"}), 0);
  EXPECT_EQ(Out(), "run7\n");
  EXPECT_EQ(Cairn({"ls", "run7"}), 0);
  EXPECT_THAT(Out(), HasSubstr("CACHED"));
  EXPECT_EQ(Cairn({"ls", "run7/3/"}), 0);
  EXPECT_THAT(Out(), HasSubstr("2.00 KiB"));
  EXPECT_EQ(Cairn({"ls", "cairn://run7/latest", "-o", "json"}), 0);
  EXPECT_EQ(OutJson()["objects"][0]["length"], 2048);
}

// Line rule 14: what there is to use.
TEST_F(CommandsTest, LsShowsWhatNoLongerCountsWithAll) {
  world_.jobs["run7"][3]["a"] = "x";
  world_.jobs["run7"][4]["a"] = "x";
  world_.abandoned = {4};
  EXPECT_EQ(Cairn({"ls", "run7"}), 0);
  EXPECT_THAT(Out(), HasSubstr("and 1 checkpoint that no longer counts; --all shows them"));
  EXPECT_THAT(Out(), Not(HasSubstr("LINE")));
  EXPECT_EQ(Cairn({"ls", "run7", "--all"}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("LINE"), HasSubstr("on it"), HasSubstr("abandoned"),
                           Not(HasSubstr("--all"))));
}

TEST_F(CommandsTest, UseSaysWhatCountsAndWhetherStorageKnows) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"use", "run7/3", "--attempt", "5"}), 0) << Err();
  EXPECT_THAT(Out(),
              AllOf(HasSubstr("run7/3 of attempt 5 is latest"), HasSubstr("only this node")));
  EXPECT_EQ(Cairn({"use", "run7/3", "--fence"}), 0) << Err();
  EXPECT_THAT(Out(), Not(HasSubstr("only this node")));
  EXPECT_THAT(world_.calls, testing::ElementsAre("use", "use fence"));
  EXPECT_EQ(Cairn({"use", "run7/latest"}), 2);
  EXPECT_EQ(Cairn({"use", "run7"}), 2);
}

TEST_F(CommandsTest, UnknownJobIsExitCode3) {
  EXPECT_EQ(Cairn({"latest", "nope"}), 3);
  EXPECT_THAT(Err(), HasSubstr("job"));
  EXPECT_EQ(Cairn({"ls", "nope"}), 3);
}

TEST_F(CommandsTest, BadPathsAreExitCode2AndAskNothingOfTheDaemon) {
  for (const char* path :
       {"run7/-1/x", "run7/3/../x", "/run7/3/x", "run7/3/.cairn/x", "-run/3/x2"}) {
    EXPECT_EQ(Cairn({"get", "--", path, "-"}), 2) << path;
  }
  EXPECT_TRUE(world_.connections.empty());
}

TEST_F(CommandsTest, LatestPrintsTheNumberAlone) {
  world_.jobs["run7"][3];
  world_.jobs["run7"][12];
  EXPECT_EQ(Cairn({"latest", "run7"}), 0);
  EXPECT_EQ(Out(), "12\n");
  EXPECT_EQ(Cairn({"latest", "run7", "-o", "json"}), 0);
  EXPECT_EQ(OutJson()["step"], 12);
}

TEST_F(CommandsTest, PutThenGetGivesTheSameBytes) {
  const std::string bytes = std::string("a\0b", 3) + std::string(5 << 20, 'y');
  EXPECT_EQ(Cairn({"put", File("in.bin", bytes), "run7/3/model.bin"}), 0) << Err();
  EXPECT_EQ(world_.connections.back().writer, 0);
  EXPECT_EQ(world_.connections.back().world_size, 1);
  EXPECT_EQ(Cairn({"get", "run7/3/model.bin", directory_ / "out.bin"}), 0) << Err();
  EXPECT_EQ(Contents(directory_ / "out.bin"), bytes);
  EXPECT_EQ(Cairn({"get", "run7/latest/model.bin", directory_}), 0) << Err();
  EXPECT_EQ(Contents(directory_ / "model.bin"), bytes);
}

TEST_F(CommandsTest, PutSavesSeveralFilesAndEmptyOnesAsOneStep) {
  EXPECT_EQ(Cairn({"put", File("a.bin", "1"), File("b.bin", ""), "run7/4/"}), 0) << Err();
  EXPECT_EQ(world_.jobs["run7"][4].at("a.bin"), "1");
  EXPECT_EQ(world_.jobs["run7"][4].at("b.bin"), "");
  EXPECT_EQ(std::count(world_.calls.begin(), world_.calls.end(), "commit"), 1);
}

TEST_F(CommandsTest, PutRefusesToLeaveNamesOfTheStepBehindAndNamesStep) {
  world_.jobs["run7"][3]["other.bin"] = "x";
  EXPECT_EQ(Cairn({"put", File("a.bin", "1"), "run7/3/a.bin"}), 1);
  EXPECT_THAT(Err(), HasSubstr("other.bin"));
  EXPECT_THAT(Err(), HasSubstr("step()"));
  EXPECT_EQ(world_.jobs["run7"][3].count("a.bin"), 0u);
}

TEST_F(CommandsTest, PutLooksAgainBeforeItCommits) {
  world_.jobs["run7"][2]["a.bin"] = "x";
  world_.while_writing = [&] { world_.jobs["run7"][3]["other.bin"] = "x"; };
  EXPECT_EQ(Cairn({"put", File("a.bin", "1"), "run7/3/a.bin"}), 1);
  EXPECT_THAT(Err(), AllOf(HasSubstr("run7/3 was saved by another"), HasSubstr("(other.bin)")));
  EXPECT_THAT(world_.calls, testing::ElementsAre("choose attempt", "abort"));
  world_.while_writing = [&] { world_.jobs["run7"][4]["a.bin"] = "x"; };
  EXPECT_EQ(Cairn({"put", File("a.bin", "1"), "run7/4/a.bin"}), 0) << Err();
}

TEST_F(CommandsTest, PutReplacesAStepWhoseNamesItAllWrites) {
  world_.jobs["run7"][3]["a.bin"] = "old";
  EXPECT_EQ(Cairn({"put", File("a.bin", "new"), "run7/3/a.bin"}), 0) << Err();
  EXPECT_EQ(world_.jobs["run7"][3]["a.bin"], "new");
}

TEST_F(CommandsTest, PutRefusesAStepOfSeveralWriters) {
  world_.jobs["run7"][3]["a.bin"] = "x";
  world_.world_size[3] = 8;
  EXPECT_EQ(Cairn({"put", File("a.bin", "1"), "run7/3/a.bin"}), 1);
  EXPECT_THAT(Err(), HasSubstr("8 writers"));
}

TEST_F(CommandsTest, PutRefusesWhatIsNoFileAndLatest) {
  EXPECT_EQ(Cairn({"put", "/nonexistent", "run7/3/a"}), 3);
  EXPECT_EQ(Cairn({"put", directory_, "run7/3/a"}), 2);
  EXPECT_EQ(Cairn({"put", File("a", "1"), "run7/latest/a"}), 2);
  EXPECT_EQ(Cairn({"put", File("a", "1"), File("b", "1"), "run7/3/one"}), 2);
  EXPECT_EQ(Cairn({"put", File("a", "1"), "run7/3/a", "--kind", "jpeg"}), 2);
  EXPECT_TRUE(world_.connections.empty());
}

TEST_F(CommandsTest, GetOfCorruptBytesIsExitCode4AndLeavesTheOldFile) {
  world_.jobs["run7"][3]["a"] = "fresh";
  const std::string out = File("out", "old");
  world_.corrupt = true;
  EXPECT_EQ(Cairn({"get", "run7/3/a", out}), 4);
  EXPECT_EQ(Contents(out), "old");
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".part")));
  }
}

// A get that was killed leaves its part behind, and another process may have its number by now.
TEST_F(CommandsTest, GetIsNotHinderedByAPartThatWasLeftBehind) {
  world_.jobs["run7"][3]["a"] = "fresh";
  const std::string stale = File(absl::StrCat("out.part-", getpid()), "stale");
  const std::string out = directory_ / "out";
  EXPECT_EQ(Cairn({"get", "run7/3/a", out}), 0) << Err();
  EXPECT_EQ(Contents(out), "fresh");
  EXPECT_EQ(Contents(stale), "stale");
  EXPECT_EQ(Cairn({"get", "run7/3/a", directory_ / "nowhere/out"}), 3);
  EXPECT_THAT(Err(), HasSubstr((directory_ / "nowhere/out.part-").string()));
}

TEST_F(CommandsTest, GetDoesNotThrowBytesAtATerminal) {
  world_.jobs["run7"][3]["a"] = "fresh";
  out_terminal_ = true;
  EXPECT_EQ(Cairn({"get", "run7/3/a", "-"}), 2);
}

TEST_F(CommandsTest, WaitPassesLevelAndTimeoutAndLateIsExitCode7) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"wait", "run7/3", "--level", "persisted", "--timeout", "2m"}), 0) << Err();
  EXPECT_EQ(world_.calls.back(), "wait PERSISTED 120 s");
  EXPECT_EQ(Cairn({"wait", "run7/3", "--level", "replicated"}), 0) << Err();
  EXPECT_EQ(world_.calls.back(), "wait REPLICATED 30 s");
  world_.wait_result = absl::DeadlineExceededError("step: 3 is CACHED after 2m");
  EXPECT_EQ(Cairn({"wait", "run7/3", "--level", "persisted"}), 7);
  EXPECT_EQ(Cairn({"wait", "run7/3", "--level", "shiny"}), 2);
  EXPECT_EQ(Cairn({"wait", "run7"}), 2);
  EXPECT_EQ(Cairn({"wait", "run7/3", "--after", "2"}), 2);
  EXPECT_EQ(Cairn({"wait", "run7/3", "--timeout", "never"}), 2);
}

TEST_F(CommandsTest, RemoveAsksBeforeTheLastCopyGoes) {
  world_.jobs["run7"][3]["a"] = "x";
  world_.refuse_remove = absl::FailedPreconditionError("step: 3 is the last copy");
  std::string question;
  ask_ = [&](const std::string& text) {
    question = text;
    return false;
  };
  EXPECT_EQ(Cairn({"rm", "run7/latest"}), 1);
  EXPECT_THAT(question, HasSubstr("last copy of run7/3"));
  EXPECT_THAT(question, testing::Not(HasSubstr("By policy")));
  world_.preview.files = {{{"run7", 3, 5, 0}, 1, true, 0, "older than the newest 2"}};
  EXPECT_EQ(Cairn({"rm", "run7/latest"}), 1);
  EXPECT_THAT(question, HasSubstr("By policy its files go at once: older than the newest 2."));
  EXPECT_EQ(world_.jobs["run7"].count(3), 1u);
  ask_ = [](const std::string&) { return true; };
  EXPECT_EQ(Cairn({"rm", "run7/latest"}), 0) << Err();
  EXPECT_EQ(world_.calls.back(), "remove 3 force");
  EXPECT_EQ(world_.jobs["run7"].count(3), 0u);
}

TEST_F(CommandsTest, RemoveWithNobodyToAskNamesYes) {
  world_.jobs["run7"][3]["a"] = "x";
  world_.refuse_remove = absl::FailedPreconditionError("step: 3 is the last copy");
  EXPECT_EQ(Cairn({"rm", "run7/3"}), 1);
  EXPECT_THAT(Err(), HasSubstr("--yes"));
  EXPECT_EQ(Cairn({"rm", "run7/3", "--yes", "--memory-only"}), 0) << Err();
  EXPECT_EQ(world_.calls.back(), "remove 3 memory force");
}

TEST_F(CommandsTest, RemoveOfAPinnedStepNamesUnpinAndAsksNothing) {
  world_.jobs["run7"][3]["a"] = "x";
  world_.pinned = {3};
  ask_ = [](const std::string&) { return true; };
  EXPECT_EQ(Cairn({"rm", "run7/latest"}), 1);
  EXPECT_THAT(Err(), HasSubstr("`cairn unpin run7/3`"));
  EXPECT_TRUE(world_.calls.empty());
}

TEST_F(CommandsTest, RemoveOfAJobGoesOnBehindWhatIsRefused) {
  for (Step step : {1, 2, 3, 4}) world_.jobs["run7"][step]["a"] = "x";
  world_.pinned = {2};
  world_.gone_meanwhile = {3};
  EXPECT_EQ(Cairn({"rm", "run7"}), 1);
  EXPECT_THAT(Err(),
              AllOf(HasSubstr("3 complete checkpoints have no other copy"), HasSubstr("--yes")));
  EXPECT_TRUE(world_.calls.empty());
  EXPECT_EQ(Cairn({"rm", "run7", "--yes"}), 1);
  EXPECT_THAT(world_.calls,
              testing::ElementsAre("remove 1 force", "remove 3 force", "remove 4 force"));
  EXPECT_THAT(Err(), HasSubstr("run7/2 stays: it is pinned; `cairn unpin run7/2` lets it go"));
  EXPECT_THAT(Err(), Not(HasSubstr("run7/3")));
  std::string question;
  ask_ = [&](const std::string& text) {
    question = text;
    return true;
  };
  world_.pinned.clear();
  EXPECT_EQ(Cairn({"rm", "run7"}), 0) << Err();
  EXPECT_THAT(question, HasSubstr("This removes 2 checkpoints of run7, 2 B."));
  EXPECT_EQ(Cairn({"rm", "run7", "--attempt", "5", "--yes"}), 2);
  EXPECT_EQ(Cairn({"rm", "nosuch", "--yes"}), 3);
}

TEST_F(CommandsTest, RemoveOfAJobWithASlashBehindItIsRefused) {
  for (Step step : {1, 2}) world_.jobs["run7"][step]["a"] = "x";
  for (const char* path : {"run7/", "cairn://run7/", "run7//"}) {
    EXPECT_EQ(Cairn({"rm", "--yes", path}), 2) << path;
    EXPECT_EQ(world_.jobs["run7"].size(), 2u) << path;
  }
  EXPECT_EQ(Cairn({"rm", "--yes", "run7/"}), 2);
  EXPECT_THAT(Err(), HasSubstr("\"run7/\" names no step; \"run7\" would remove all of the job"));
  EXPECT_TRUE(world_.calls.empty());
}

// What is forced is what was asked for.
TEST_F(CommandsTest, RemoveOfAJobForcesNothingThatWasNotAskedFor) {
  for (Step step : {1, 2}) world_.jobs["run7"][step]["a"] = "x";
  world_.incomplete = {1, 2};
  EXPECT_EQ(Cairn({"rm", "run7"}), 0) << Err();
  EXPECT_THAT(world_.calls, testing::ElementsAre("remove 1", "remove 2"));
  for (Step step : {1, 2}) world_.jobs["run7"][step]["a"] = "x";
  // It became complete after it was listed.
  world_.refuse_remove =
      absl::FailedPreconditionError("remove: nothing would be left; force removes it all the same");
  EXPECT_EQ(Cairn({"rm", "run7"}), 1);
  EXPECT_THAT(Err(), HasSubstr("run7/1 stays: remove: nothing would be left; --yes removes it"));
  EXPECT_EQ(world_.jobs["run7"].size(), 2u);
  world_.calls.clear();
  world_.incomplete = {1};
  ask_ = [](const std::string&) { return true; };
  EXPECT_EQ(Cairn({"rm", "run7"}), 1) << "step 1 was not asked for";
  EXPECT_THAT(world_.calls, testing::ElementsAre("remove 1", "remove 2 force"));
  EXPECT_EQ(Cairn({"rm", "run7", "--yes"}), 0) << Err();
}

TEST_F(CommandsTest, WhatTheDaemonCallsForceIsYesHere) {
  world_.jobs["run7"][3]["a"] = "x";
  world_.refuse_remove =
      absl::FailedPreconditionError("remove: nothing would be left; force removes it all the same");
  EXPECT_EQ(Cairn({"rm", "run7/3"}), 1);
  EXPECT_THAT(Err(), AllOf(HasSubstr("; --yes removes it all the same"), Not(HasSubstr("force"))));
}

TEST_F(CommandsTest, GetOfAStepWritesAllOfItOrNothing) {
  world_.jobs["run7"][3] = {{"a", "one"}, {"deep/er/b", "two"}};
  const std::string out = directory_ / "new/out";
  EXPECT_EQ(Cairn({"get", "run7/3", out}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("made the directory " + out));
  EXPECT_EQ(Contents(out + "/a"), "one");
  EXPECT_EQ(Contents(out + "/deep/er/b"), "two");
  world_.jobs["run7"][3]["a"] = "changed";
  world_.corrupt = true;
  EXPECT_EQ(Cairn({"get", "run7/latest", out}), 4);
  EXPECT_EQ(Contents(out + "/a"), "one");
  EXPECT_EQ(Cairn({"get", "run7/latest", directory_ / "other/out"}), 4);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "other"));
  EXPECT_EQ(Cairn({"get", "run7/3", "-"}), 2);
  EXPECT_EQ(Cairn({"get", "run7/3", File("file", "")}), 2);
  EXPECT_EQ(Cairn({"get", "run7", out}), 2);
}

TEST_F(CommandsTest, GetWritesBehindALinkAndLeavesIt) {
  world_.jobs["run7"][3] = {{"a", "fresh"}, {"b", "more"}};
  std::filesystem::create_directory(directory_ / "far");
  const std::string far = File("far/real", "old"), out = directory_ / "out";
  std::filesystem::create_symlink("far/real", out);
  EXPECT_EQ(Cairn({"get", "run7/3/a", out}), 0) << Err();
  EXPECT_TRUE(std::filesystem::is_symlink(out));
  EXPECT_EQ(Contents(far), "fresh");
  std::filesystem::create_directory(directory_ / "dir");
  std::filesystem::create_symlink(far, directory_ / "dir/b");
  EXPECT_EQ(Cairn({"get", "run7/3", directory_ / "dir"}), 0) << Err();
  EXPECT_TRUE(std::filesystem::is_symlink(directory_ / "dir/b"));
  EXPECT_EQ(Contents(far), "more");
  // Two objects do not fit into one file.
  std::filesystem::remove(directory_ / "dir/a");
  std::filesystem::create_symlink("b", directory_ / "dir/a");
  EXPECT_EQ(Cairn({"get", "run7/3", directory_ / "dir"}), 2);
  EXPECT_THAT(Err(), HasSubstr("lead to one file"));
  EXPECT_EQ(Contents(far), "more");
  std::filesystem::remove(far);
  EXPECT_EQ(Cairn({"get", "run7/3/a", out}), 3);
  EXPECT_THAT(Err(), HasSubstr("a link that leads nowhere"));
  EXPECT_TRUE(std::filesystem::is_symlink(out));
}

TEST_F(CommandsTest, GetToStandardOutputByAnotherNameWritesToIt) {
  world_.jobs["run7"][3]["a"] = "fresh";
  const std::string redirected = File("redirected", "");
  const UniqueFd fd(open(redirected.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  out_fd_ = fd.get();
  const std::string link = directory_ / "link";
  std::filesystem::create_symlink(absl::StrCat("/proc/self/fd/", fd.get()), link);
  for (const std::string& name : {link, absl::StrCat("/proc/self/fd/", fd.get())}) {
    EXPECT_EQ(Cairn({"get", "run7/3/a", name}), 0) << Err();
    EXPECT_EQ(Out(), "") << "it would stand among the bytes";
  }
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(Contents(redirected), "freshfresh");
  out_terminal_ = true;
  EXPECT_EQ(Cairn({"get", "run7/3/a", link}), 2);
}

TEST_F(CommandsTest, GetKeepsTheModeOfAFileThatItReplaces) {
  world_.jobs["run7"][3]["a"] = "fresh";
  const std::string out = File("out", "old");
  const auto mode = [&] { return std::filesystem::status(out).permissions(); };
  for (const int octal : {0600, 0664, 0400}) {
    const auto before = static_cast<std::filesystem::perms>(octal);
    std::filesystem::permissions(out, before);
    EXPECT_EQ(Cairn({"get", "run7/3/a", out}), 0) << Err();
    EXPECT_EQ(mode(), before);
  }
}

// As `get run7/3 "$DIR"` is where DIR is unset.
TEST_F(CommandsTest, GetRefusesAnEmptyNameOfAFile) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"get", "run7/3", ""}), 2);
  EXPECT_THAT(Err(), HasSubstr("DIR: is empty"));
  EXPECT_EQ(Cairn({"get", "run7/3/a", ""}), 2);
  EXPECT_THAT(Err(), HasSubstr("FILE: is empty"));
  EXPECT_TRUE(world_.connections.empty());
}

TEST_F(CommandsTest, CtrlCWhileAStepTakesItsNamesLeavesTheOldFilesOrTheNew) {
  const std::vector<std::string> names = {"a", "b", "c"};
  const std::filesystem::path out = directory_ / "out";
  std::filesystem::create_directory(out);
  for (const std::string& name : names) {
    world_.jobs["run7"][3][name] = "new";
    File("out/" + name, "old");
  }
  const auto interrupted = [&](int at) {
    std::signal(SIGINT, SIG_DFL);  // a shell ignores it in what it starts in the background
    RemoveUnfinishedOnSignals();
    interrupted_rename = at;
    Cairn({"get", "run7/3", out});
  };
  EXPECT_EXIT(interrupted(2), testing::KilledBySignal(SIGINT), "");
  for (const std::string& name : names) EXPECT_EQ(Contents(out / name), "new") << name;
}

TEST_F(CommandsTest, GetOfAStepSaysHowManyFilesItReplacedBeforeItFailed) {
  for (const char* name : {"a", "b", "c"}) world_.jobs["run7"][3][name] = "new";
  failing_rename = 2;
  EXPECT_EQ(Cairn({"get", "run7/3", directory_ / "out"}), 5);
  EXPECT_THAT(Err(),
              AllOf(HasSubstr("/out/b: "), HasSubstr("; 1 of 3 files were replaced before it")));
  EXPECT_EQ(Contents(directory_ / "out/a"), "new");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "out/c"));
}

TEST_F(CommandsTest, PutReadsStandardInputToItsEnd) {
  const std::string bytes(3 << 20, 'z');
  const UniqueFd in(open(File("in", bytes).c_str(), O_RDONLY | O_CLOEXEC));
  in_fd_ = in.get();
  EXPECT_EQ(Cairn({"put", "-", "run7/3/"}), 2);
  EXPECT_EQ(Cairn({"put", "-", "run7/3/a/b"}), 0) << Err();
  EXPECT_EQ(world_.jobs["run7"][3].at("a/b"), bytes);
  DaemonIsDown();
  lseek(in.get(), 0, SEEK_SET);
  EXPECT_EQ(Cairn({"put", "-", "run7/4/a"}), 6);
  EXPECT_EQ(lseek(in.get(), 0, SEEK_CUR), 0) << "nothing is read that cannot be saved";
}

TEST_F(CommandsTest, WatchShowsStatusAgainUntilNobodyReads) {
  world_.jobs["run7"][3]["a"] = "x";
  world_.status = R"({"jobs":[{"job":"run7","latest_step":3,"latest_persisted_step":3}]})";
  std::vector<absl::Duration> pauses;
  pause_ = [&](absl::Duration time) {
    pauses.push_back(time);
    return pauses.size() % 2 == 1;
  };
  const auto pages = [&] {
    const std::string text = Out();
    size_t count = 0;
    for (size_t at = 0; (at = text.find("run7: step 3", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"status", "--watch=5"},
                                             {"status", "--watch", "5"},
                                             {"status", "run7", "--watch=5"},
                                             {"status", "--watch"},
                                             {"status", "--watch", "run7"}}) {
    EXPECT_EQ(Cairn(arguments), 0) << Err();
    EXPECT_EQ(pages(), 2u) << Out();
    EXPECT_EQ(pauses.back(), absl::Seconds(arguments.back().ends_with("5") ? 5 : 2));
  }
  for (const char* wrong : {"--watch=-1", "--watch=0", "--watch=never!"}) {
    EXPECT_EQ(Cairn({"status", wrong}), 2);
    EXPECT_THAT(Err(), HasSubstr("is not a time"));
  }
}

TEST_F(CommandsTest, PeersAndClusterShowTheRing) {
  world_.status = R"({"ring":{"cluster":"run","rank":1,"members":[
      {"rank":0,"address":"a:1","state":"up","incarnation":7,"silent_ms":20},
      {"rank":1,"address":"b:1","state":"self","incarnation":8}]},
      "jobs":[{"job":"run7","latest_step":3,
               "ring":{"latest":3,"protected":3,"target":3,"replicas":1,"asked":1}},
              {"job":"old","latest_step":2}]})";
  EXPECT_EQ(Cairn({"peers"}), 0) << Err();
  EXPECT_THAT(Out(), AllOf(HasSubstr("rank 1 of 2 in run, 2 of 2 up"), HasSubstr("a:1")));
  EXPECT_EQ(Cairn({"peers", "-o", "json"}), 0) << Err();
  EXPECT_EQ(nlohmann::json::parse(Out())["members"].size(), 2u);
  EXPECT_EQ(Cairn({"status", "--cluster"}), 0) << Err();
  EXPECT_THAT(Out(), AllOf(HasSubstr("members"), HasSubstr("run7"), Not(HasSubstr("old"))));
  EXPECT_EQ(Cairn({"status", "--cluster", "-o", "json"}), 0) << Err();
  EXPECT_EQ(nlohmann::json::parse(Out())["jobs"].size(), 1u);
  EXPECT_EQ(Cairn({"status", "--cluster", "run7"}), 2);
  EXPECT_THAT(Err(), HasSubstr("leave out JOB"));
}

TEST_F(CommandsTest, ClusterShowsWhatNodesLastSaidWhereACatalogIsShared) {
  world_.status = R"({"catalog":"mysql: up to date","ring":{"cluster":"run","rank":1,"members":[
      {"rank":0,"address":"a:1","state":"lost"},{"rank":1,"address":"b:1","state":"self"}]}})";
  world_.index = R"({"nodes":[{"node":"0","incarnation":7,"seen_unix_ms":1,"used_bytes":1024}]})";
  EXPECT_EQ(Cairn({"status", "--cluster"}), 0) << Err();
  EXPECT_THAT(Out(), AllOf(HasSubstr("as the nodes last said"), HasSubstr("1.00 KiB")));
  EXPECT_THAT(world_.calls, testing::ElementsAre("index  limit=0"));
  EXPECT_EQ(Cairn({"status", "--cluster", "-o", "json"}), 0) << Err();
  EXPECT_EQ(nlohmann::json::parse(Out())["catalog"]["nodes"].size(), 1u);
  world_.index = absl::UnavailableError("catalog: the database has not answered for 2000 ms");
  EXPECT_EQ(Cairn({"status", "--cluster"}), 0) << "the ring itself is shown";
  EXPECT_THAT(Out(), AllOf(HasSubstr("lost"), HasSubstr("has not answered for 2000 ms")));
}

TEST_F(CommandsTest, LsOfTheClusterAsksTheCatalog) {
  EXPECT_EQ(Cairn({"ls", "--cluster"}), 6);
  EXPECT_THAT(Err(), HasSubstr("this node shares none"));
  world_.index = R"({"jobs":[{"job":"run7","latest":{"step":40,"attempt":3,"world_size":2,
      "holders":[{"node":"2","parts":1,"seen_unix_ms":1}]}},{"job":"new"}],
      "checkpoints":[{"step":40,"attempt":3,"world_size":2,"persisted":true}]})";
  EXPECT_EQ(Cairn({"ls", "--cluster"}), 0) << Err();
  EXPECT_THAT(Out(), AllOf(HasSubstr("run7"), HasSubstr("rank 2: 1 of 2 parts"), HasSubstr("new")));
  EXPECT_EQ(Cairn({"ls", "--cluster", "run7"}), 0) << Err();
  EXPECT_THAT(Out(), testing::ContainsRegex("40 +3 .*yes +latest"));
  EXPECT_EQ(Cairn({"ls", "--cluster", "run7", "-a", "-o", "json"}), 0) << Err();
  EXPECT_EQ(nlohmann::json::parse(Out())["jobs"].size(), 2u);
  EXPECT_THAT(world_.calls, testing::ElementsAre("index  limit=100", "index  limit=100",
                                                 "index run7 limit=100", "index run7 limit=1000"));
  EXPECT_EQ(Cairn({"ls", "--cluster", "run7/3"}), 2);
}

// The number alone goes to standard output, whatever the catalog knows; the exit code stays, too.
TEST_F(CommandsTest, LatestNamesWhatWasCompleteAndCannotBeHadNow) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"latest", "run7"}), 0) << Err();
  EXPECT_EQ(Err(), "") << "no catalog, no word of it";
  world_.index = R"({"jobs":[{"job":"run7","latest":{"step":40,"attempt":9,"world_size":1,
      "completed_unix_ms":1000,"holders":[{"node":"2","parts":1,"seen_unix_ms":1}]}}]})";
  EXPECT_EQ(Cairn({"latest", "run7"}), 0);
  EXPECT_EQ(Out(), "3\n");
  EXPECT_THAT(Err(), AllOf(HasSubstr("step 40 of attempt 9"), HasSubstr("rank 2 ("),
                           HasSubstr("1970-01-01 00:00:01")));
  world_.latest = absl::DataLossError("run7/40 has no good copy any more");
  EXPECT_EQ(Cairn({"latest", "run7"}), 4);
  EXPECT_THAT(Err(), AllOf(HasSubstr("step 40 of attempt 9"), HasSubstr("no good copy")));
  world_.latest = absl::OkStatus();
  world_.index = R"({"jobs":[{"job":"run7","latest":{"step":2,"attempt":1,"world_size":1}}]})";
  EXPECT_EQ(Cairn({"latest", "run7"}), 0);
  EXPECT_EQ(Err(), "") << "the catalog is behind";
}

TEST_F(CommandsTest, PeersOfANodeAloneIsAnAnswerToo) {
  EXPECT_EQ(Cairn({"peers"}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("alone"));
  EXPECT_EQ(Cairn({"peers", "-o", "json"}), 0) << Err();
  EXPECT_EQ(Out(), "{}\n");
  EXPECT_EQ(Cairn({"status", "--cluster"}), 0) << Err();
}

TEST_F(CommandsTest, TopShowsItAgainUntilNobodyReadsAndOnceAsPlainText) {
  world_.status = R"({"state":"serving","counters":{"bytes_read_over_tcp":7},
      "ring":{"cluster":"run","rank":0,"members":[
      {"rank":0,"address":"a:1","state":"self","incarnation":8},
      {"rank":1,"address":"b:1","state":"up","incarnation":7,"silent_ms":20}]}})";
  std::vector<absl::Duration> pauses;
  pause_ = [&](absl::Duration time) {
    pauses.push_back(time);
    return pauses.size() == 1;
  };
  EXPECT_EQ(Cairn({"top", "--interval=500ms"}), 0) << Err();
  EXPECT_EQ(pauses, std::vector(2, absl::Milliseconds(500)));
  EXPECT_THAT(Out(), AllOf(HasSubstr("reading   - over TCP"), HasSubstr("reading   0 B/s over TCP"),
                           HasSubstr("   1  up"), Not(HasSubstr("\x1b"))));
  pauses.clear();
  EXPECT_EQ(Cairn({"top", "--once"}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("rank 0 of 2 in run, 2 of 2 up"));
  EXPECT_EQ(Cairn({"top", "--once", "-o", "json"}), 0) << Err();
  EXPECT_TRUE(OutJson()["bytes_per_second_over_tcp"].is_null());
  EXPECT_EQ(OutJson()["ring"]["members"].size(), 2u);
  EXPECT_TRUE(pauses.empty());
  EXPECT_EQ(Cairn({"top", "--interval=0"}), 2);
  EXPECT_THAT(Err(), HasSubstr("interval: \"0\" is not a time above 0"));
}

TEST_F(CommandsTest, WatchLeavesWhatTheTerminalHasScrolledBy) {
  out_terminal_ = true;
  pause_ = [](absl::Duration) { return false; };
  EXPECT_EQ(Cairn({"status", "--watch"}), 0) << Err();
  EXPECT_THAT(Out(), AllOf(HasSubstr("\x1b[2J"), Not(HasSubstr("\x1b[3J"))));
}

TEST_F(CommandsTest, LsShowsAgesAndTheRestWhenWide) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"ls", "run7"}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("AGE"), HasSubstr("3 h"), Not(HasSubstr("ATTEMPT"))));
  EXPECT_EQ(Cairn({"ls", "run7", "-o", "wide"}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("SAVED (UTC)"), HasSubstr("ATTEMPT  REV")));
  world_.status = R"({"jobs":[{"job":"run7","owner_uid":1000,"latest_step":3}]})";
  world_.jobs["stored"];
  EXPECT_EQ(Cairn({"ls", "-o", "wide"}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("uid 1000"), testing::ContainsRegex("stored +-")));
}

TEST_F(CommandsTest, PersistAsksAndWaits) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"persist", "run7/3"}), 0) << Err();
  EXPECT_EQ(world_.calls, (std::vector<std::string>{"persist", "wait PERSISTED 30 s"}));
  world_.calls.clear();
  EXPECT_EQ(Cairn({"persist", "--no-wait", "run7/3"}), 0);
  EXPECT_EQ(world_.calls, std::vector<std::string>{"persist"});
}

TEST_F(CommandsTest, PinAndUnpin) {
  world_.jobs["run7"][3]["a"] = "x";
  EXPECT_EQ(Cairn({"pin", "run7/3"}), 0);
  EXPECT_EQ(world_.calls.back(), "pin");
  EXPECT_EQ(Cairn({"unpin", "run7/3"}), 0);
  EXPECT_EQ(world_.calls.back(), "unpin");
  EXPECT_EQ(Cairn({"pin", "run7/9"}), 3);
}

TEST_F(CommandsTest, PolicyChangesOnlyWhatWasNamed) {
  world_.status =
      R"({"jobs":[{"job":"run7","policy":{"mode":"NEWEST","every":1,"keep_last":4,"keep_every":0}}]})";
  EXPECT_EQ(Cairn({"policy", "run7", "-o", "json"}), 0) << Err();
  EXPECT_EQ(OutJson()["persist"], "newest");
  EXPECT_EQ(OutJson()["keep_last"], 4);
  EXPECT_TRUE(world_.calls.empty());
  EXPECT_EQ(Cairn({"policy", "run7", "--every", "100"}), 0) << Err();
  EXPECT_EQ(world_.calls.back(), "policy run7 mode=1 every=100 keep_last=4");
  EXPECT_EQ(Cairn({"policy", "run7", "--persist", "sometimes"}), 2);
  EXPECT_EQ(Cairn({"policy", "run7", "--replicas", "1"}), 2);
  EXPECT_THAT(Err(), HasSubstr("replicas: 1, but this node is alone"));
  EXPECT_EQ(Cairn({"policy", "run7", "--replicas", "0"}), 0) << Err();
  EXPECT_EQ(Cairn({"policy", "run7", "--mode=on_demand"}), 0) << Err();
  EXPECT_EQ(world_.calls.back(), "policy run7 mode=0 every=1 keep_last=4");
}

TEST_F(CommandsTest, PolicyDryRunShowsWhatWouldGoAndChangesNothing) {
  world_.status =
      R"({"jobs":[{"job":"run7","policy":{"mode":"NEWEST","every":1,"keep_last":4,"keep_every":0}}]})";
  world_.preview.files = {
      {{"run7", 3, 1, 0}, 2048, true, 0, "older than the newest 2"},
      {{"run7", 4, 1, 0}, 1024, false, 86400000, "abandoned: once its grace is over"}};
  world_.preview.stay = 2;
  world_.preview.go_now = world_.preview.go_later = 1;
  world_.preview.bytes_now = 2048;
  EXPECT_EQ(Cairn({"policy", "run7", "--keep-last", "2", "--dry-run"}), 0) << Err();
  EXPECT_THAT(world_.calls, testing::ElementsAre("preview run7 keep_last=2"));
  EXPECT_THAT(Out(), testing::HasSubstr("now                  older than the newest 2"));
  EXPECT_THAT(Out(), testing::HasSubstr("1970-01-02 00:00:00  abandoned: once"));
  EXPECT_THAT(Out(),
              testing::HasSubstr("files of 1 checkpoint (2.00 KiB) go at once, of 1 checkpoint"));
  EXPECT_EQ(Cairn({"policy", "run7", "--dry-run", "-o", "json"}), 0) << Err();
  EXPECT_EQ(OutJson()["files"][1]["why"], "abandoned: once its grace is over");
  EXPECT_EQ(OutJson()["go_now"], 1);
}

TEST_F(CommandsTest, PolicyRefusesMoreReplicasThanTheRingHasOtherMembers) {
  world_.jobs["run7"][1]["a"] = "a";
  world_.status = R"({"ring":{"members":[{"rank":0,"state":"self"},{"rank":1,"state":"lost"}]},
                      "jobs":[{"job":"run7","policy":{"mode":"NEWEST","every":1}}]})";
  EXPECT_EQ(Cairn({"policy", "run7", "--replicas", "2"}), 2);
  EXPECT_THAT(Err(), HasSubstr("replicas: 2 is not 0 to 1 with 2 members"));
  EXPECT_EQ(Cairn({"policy", "run7", "--replicas", "1"}), 0) << Err();
}

TEST_F(CommandsTest, PolicyOfAMisspelledJobDoesNotBringItIntoBeing) {
  world_.status = R"({"jobs":[]})";
  EXPECT_EQ(Cairn({"policy", "rum7", "--every", "100"}), 3);
  for (const auto& options : world_.connections) EXPECT_EQ(options.job, "");
}

TEST_F(CommandsTest, StatusInJsonKeepsExactNumbersAndAddsTheAnswer) {
  world_.status =
      R"({"budget_bytes":9007199254740993,"jobs":[{"job":"run7","latest_step":3,"latest_persisted_step":2}]})";
  EXPECT_EQ(Cairn({"status", "-o", "json"}), 0);
  EXPECT_EQ(OutJson()["budget_bytes"].get<int64_t>(), 9007199254740993);
  EXPECT_EQ(OutJson()["safe"], false);
  world_.status = "not json";
  EXPECT_EQ(Cairn({"status"}), 1);
}

TEST_F(CommandsTest, StorageInitGivesARootItsIdentityOnce) {
  const std::string root = directory_ / "root", known = "0f0e0d0c-0b0a-4908-8706-050403020100";
  EXPECT_EQ(Cairn({"storage", "init", root}), 3) << "there is no such folder";
  std::filesystem::create_directory(root);
  EXPECT_EQ(Cairn({"storage", "init", root}), 0) << Err();
  const std::string first = Out();
  EXPECT_THAT(first, HasSubstr(Contents(directory_ / "root/.cairn-root").substr(0, 36)));
  EXPECT_EQ(Cairn({"--storage", root, "storage", "init"}), 0) << Err();
  EXPECT_EQ(Out(), first) << "one that it has stays";
  EXPECT_EQ(Cairn({"storage", "init", root, "--identity", known}), 1);
  EXPECT_THAT(Err(), HasSubstr("remove"));
  std::filesystem::remove(directory_ / "root/.cairn-root");
  EXPECT_EQ(Cairn({"storage", "init", root, "--identity", "mine"}), 2);
  EXPECT_EQ(Cairn({"storage", "init", root, "--identity", known}), 0) << Err();
  EXPECT_EQ(Contents(directory_ / "root/.cairn-root"), known + "\n");
  EXPECT_EQ(Cairn({"storage"}), 2);
}

TEST_F(CommandsTest, ClusterInitMakesAnAuthorityAndACertificateForEachMember) {
  const std::string folder = directory_ / "certs";
  const std::vector<std::string> init = {"cluster",   "init",  folder,
                                         "--cluster", "train", "--nodes"};
  const auto with = [&](const std::string& nodes) {
    std::vector<std::string> all = init;
    all.push_back(nodes);
    return all;
  };
  EXPECT_EQ(Cairn(with("0=10.0.0.1:7400,1=10.0.0.2:7400")), 0) << Err();
  EXPECT_THAT(Out(), AllOf(HasSubstr(folder + "/node-1.key"), HasSubstr("cluster = \"train\""),
                           HasSubstr("nodes = \"0=10.0.0.1:7400,1=10.0.0.2:7400\"")));
  for (const char* secret : {"ca.key", "node-0.key", "node-1.key"}) {
    const auto mode = std::filesystem::status(std::filesystem::path(folder) / secret).permissions();
    EXPECT_EQ(static_cast<int>(mode), 0600) << secret;
    EXPECT_THAT(Contents(std::filesystem::path(folder) / secret), HasSubstr("PRIVATE KEY"));
  }
  const std::string first = Contents(directory_ / "certs/node-0.pem");
  EXPECT_THAT(first, HasSubstr("BEGIN CERTIFICATE"));
  // Another member, later: what is there stays.
  EXPECT_EQ(Cairn(with("0=10.0.0.1:7400,2=10.0.0.3:7400")), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("node-0.pem is there already"));
  EXPECT_EQ(Contents(directory_ / "certs/node-0.pem"), first);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "certs/node-2.pem"));
}

// Another user's authority was taken, who could then make members of the ring.
TEST_F(CommandsTest, ClusterInitTakesNoAuthorityOfAnotherUser) {
  const std::string folder = directory_ / "certs";
  const std::vector<std::string> init = {"cluster", "init",    folder,           "--cluster",
                                         "train",   "--nodes", "0=10.0.0.1:7400"};
  ASSERT_EQ(Cairn(init), 0) << Err();
  ASSERT_EQ(::chmod((folder + "/ca.key").c_str(), 0640), 0);
  EXPECT_NE(Cairn(init), 0);
  EXPECT_THAT(Err(), AllOf(HasSubstr(folder + "/ca.key"), HasSubstr("mode 0640")));
  ASSERT_EQ(::chmod((folder + "/ca.key").c_str(), 0600), 0);
  ASSERT_EQ(Cairn(init), 0) << Err();
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr uid_t kOther = 2002;
  for (const char* file : {"", "/ca.pem", "/ca.key", "/node-0.pem"}) {
    const std::string path = folder + file;
    ASSERT_EQ(::chown(path.c_str(), kOther, static_cast<gid_t>(-1)), 0);
    EXPECT_NE(Cairn(init), 0) << path;
    EXPECT_THAT(Err(), HasSubstr(path + ": belongs to uid 2002"));
    ASSERT_EQ(::chown(path.c_str(), 0, static_cast<gid_t>(-1)), 0);
  }
  EXPECT_EQ(Cairn(init), 0) << Err();
}

TEST_F(CommandsTest, ClusterInitRefusesWhatIsNoRing) {
  const std::string folder = directory_ / "certs";
  EXPECT_EQ(Cairn({"cluster", "init", folder, "--cluster", "a/b", "--nodes", "0=10.0.0.1:1"}), 2);
  EXPECT_THAT(Err(), HasSubstr("--cluster"));
  EXPECT_EQ(Cairn({"cluster", "init", folder, "--cluster", "a", "--nodes", "0=host:1"}), 2);
  EXPECT_THAT(Err(), AllOf(HasSubstr("--nodes"), HasSubstr("host:1")));
  for (const auto& [nodes, why] : std::map<std::string, std::string>{
           {"0=10.0.0.1:1,3=10.0.0.1:1", "ranks 0 and 3 are both at 10.0.0.1:1"},
           {"0=10.0.0.1:1,1=0.0.0.0:1", "rank 1: 0.0.0.0:1 is not an address"}}) {
    EXPECT_EQ(Cairn({"cluster", "init", folder, "--cluster", "a", "--nodes", nodes}), 2);
    EXPECT_THAT(Err(), AllOf(HasSubstr("--nodes"), HasSubstr(why)));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_EQ(Cairn({"cluster", "init", folder, "--cluster", "a", "--nodes", "0=10.0.0.1:1"}), 0);
  EXPECT_EQ(Cairn({"cluster", "init", folder, "--cluster", "b", "--nodes", "1=10.0.0.2:1"}), 2);
  EXPECT_THAT(Err(), HasSubstr("the authority of"));
  EXPECT_EQ(Cairn({"cluster"}), 2);
}

// --- weights

std::string Safetensors(const std::vector<TensorEntry>& tensors, const std::string& bytes,
                        const std::map<std::string, std::string>& metadata = {}) {
  return *EncodeSafetensorsHeader(tensors, metadata) + bytes;
}

// Two objects that each hold a half of "w", [2, 3] in U8: by columns.
std::map<std::string, std::string> HalvesOfW() {
  const auto half = [](uint64_t start, uint64_t width) {
    return std::map<std::string, std::string>{
        {"format", "pt"},
        {"cairn.parts", absl::StrCat(R"({"w": {"shape": [2, 3], "start": [0, )", start, "]}}")},
        {"half", absl::StrCat(width)}};
  };
  return {
      {"a.safetensors", Safetensors({{"w", "U8", {2, 2}}}, "abde", half(0, 2))},
      {"b.safetensors", Safetensors({{"w", "U8", {2, 1}}, {"norm", "U8", {1}}}, "cfn", half(2, 1))},
      {"notes.txt", "none of the tensors"}};
}

TEST_F(CommandsTest, RingShowsWhoHasWhichRank) {
  EXPECT_EQ(Cairn({"ring"}), 1);
  EXPECT_THAT(Err(), HasSubstr("it is a list"));
  client::RingInfo ring;
  ring.epoch = 3;
  ring.rank = 1;
  ring.seats = {{0, true, 4, "10.0.0.1:7400", 2000}, {1, false, 7, "", -1}};
  world_.ring = ring;
  EXPECT_EQ(Cairn({"ring"}), 0);
  EXPECT_THAT(Out(), HasSubstr("epoch 3, 2 ranks; this node has rank 1"));
  EXPECT_THAT(Out(), HasSubstr("   0  10.0.0.1:7400            4  2 s ago\n"));
  EXPECT_THAT(Out(), HasSubstr("empty"));
  EXPECT_THAT(Out(), HasSubstr("never"));
  EXPECT_EQ(Cairn({"ring", "-o", "json"}), 0);
  EXPECT_EQ(OutJson()["seats"][0]["incarnation"], 4);
  EXPECT_EQ(OutJson()["size"], 2);
  EXPECT_EQ(Cairn({"ring", "resize", "5"}), 0);
  EXPECT_EQ(Out(), "the ring has 5 ranks from epoch 7 on\n");
  EXPECT_THAT(world_.calls, testing::ElementsAre("resize 5"));
  EXPECT_EQ(Cairn({"ring", "resize"}), 2);
  EXPECT_EQ(Cairn({"ring", "resize", "many"}), 2);
}

TEST_F(CommandsTest, DrainWaitsUntilNothingIsOnlyHere) {
  pause_ = [](absl::Duration) { return true; };
  world_.status = R"({"state": "serving"})";
  world_.after_drain = {
      R"({"state": "draining: 1 checkpoints are only here: run/7", "writing_bytes": 0})",
      R"({"state": "draining: nothing is only here", "writing_bytes": 4096})",
      R"({"state": "draining: nothing is only here", "writing_bytes": 0})"};
  EXPECT_EQ(Cairn({"drain"}), 0) << Err();
  EXPECT_EQ(Out(),
            "draining: 1 checkpoints are only here: run/7\n"
            "draining: nothing is only here\n"
            "drained: nothing is only here; the daemon may be stopped\n");
  world_.calls.clear();
  EXPECT_EQ(Cairn({"drain", "--undo"}), 0);
  EXPECT_THAT(world_.calls, testing::ElementsAre("drain off"));
  world_.calls.clear();
  world_.status = R"({"state": "serving"})";
  EXPECT_EQ(Cairn({"drain", "--no-wait"}), 0);
  EXPECT_THAT(world_.calls, testing::ElementsAre("drain on"));
}

TEST_F(CommandsTest, DrainOfAMemberOfTheCatalogWaitsForItsRankToBeGivenBack) {
  pause_ = [](absl::Duration) { return true; };
  world_.ring = client::RingInfo{};
  world_.status = R"({"state": "serving"})";
  world_.after_drain = {
      R"({"state": "draining: nothing is only here", "writing_bytes": 0})",
      R"({"state": "draining: nothing is only here; this node has no rank: it has given its rank back"})"};
  EXPECT_EQ(Cairn({"drain"}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("drained: the rank is given back; the daemon may be stopped\n"));
}

TEST_F(CommandsTest, DrainThatTakesTooLongSaysWhatIsLeft) {
  pause_ = [](absl::Duration) { return true; };
  world_.status = R"({"state": "draining: 1 checkpoints are only here: run/7"})";
  EXPECT_EQ(Cairn({"drain", "--timeout", "1ms"}), 7);
  EXPECT_THAT(Err(), HasSubstr("still under way, and goes on: draining: 1 checkpoints"));
}

TEST_F(CommandsTest, ClusterInitMakesCertificatesForAnyRank) {
  const std::string certs = directory_ / "certs";
  EXPECT_EQ(Cairn({"cluster", "init", certs, "--cluster", "train"}), 2);
  EXPECT_EQ(Cairn({"cluster", "init", certs, "--cluster", "train", "--any", "2"}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("members = \"catalog\""));
  for (const char* name : {"ca.pem", "any-1.pem", "any-1.key", "any-2.pem", "any-2.key"}) {
    EXPECT_TRUE(std::filesystem::exists(certs + "/" + name)) << name;
  }
}

TEST_F(CommandsTest, WeightsLsShowsATensorInPartsOnce) {
  world_.jobs["run7"][3] = HalvesOfW();
  EXPECT_EQ(Cairn({"weights", "ls", "run7"}), 0) << Err();
  EXPECT_EQ(Out(),
            "NAME  DTYPE  SHAPE   SIZE\n"
            "w     U8     [2, 3]   6 B\n"
            "norm  U8     [1]      1 B\n"
            "2 tensors, 7 B in 2 objects\n");
  EXPECT_EQ(Cairn({"weights", "ls", "run7/3", "no*", "-o", "wide"}), 0) << Err();
  EXPECT_EQ(Out(),
            "NAME  DTYPE  SHAPE  SIZE  BYTES  PARTS  IN\n"
            "norm  U8     [1]     1 B      1      1  b.safetensors\n"
            "1 tensor, 1 B in 1 object\n");
  EXPECT_EQ(Cairn({"weights", "ls", "run7/3", "w", "-o", "json"}), 0) << Err();
  EXPECT_EQ(OutJson()["tensors"][0]["parts"][1]["start"], Json({0, 2}));
}

TEST_F(CommandsTest, WeightsGetWritesWholeTensorsToOneFile) {
  world_.jobs["run7"][3] = HalvesOfW();
  const std::string out = File("out", "old");
  EXPECT_EQ(Cairn({"weights", "get", "run7/latest", out}), 0) << Err();
  EXPECT_EQ(Contents(out),
            Safetensors({{"w", "U8", {2, 3}}, {"norm", "U8", {1}}}, "abcdefn", {{"format", "pt"}}));
  EXPECT_EQ(Cairn({"weights", "get", "run7/3", out, "norm"}), 0) << Err();
  EXPECT_EQ(Contents(out), Safetensors({{"norm", "U8", {1}}}, "n", {{"format", "pt"}}));
  EXPECT_EQ(Cairn({"weights", "get", "run7/3", out, "no*", "x*"}), 2);
  EXPECT_THAT(Err(), HasSubstr("\"x*\" matches none of the 2 tensors"));
  world_.corrupt = true;
  EXPECT_EQ(Cairn({"weights", "get", "run7/3", out}), 4);
  EXPECT_EQ(Contents(out), Safetensors({{"norm", "U8", {1}}}, "n", {{"format", "pt"}}));
  world_.corrupt = false;
  world_.jobs["run7"][3].erase("a.safetensors");
  EXPECT_EQ(Cairn({"weights", "get", "run7/3", directory_ / "new"}), 2);
  EXPECT_THAT(Err(), HasSubstr("\"w\" lacks [0:2, 0:2]"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "new"));
}

TEST_F(CommandsTest, WeightsCheckPrintsAllThatIsWrong) {
  world_.jobs["run7"][3] = HalvesOfW();
  EXPECT_EQ(Cairn({"weights", "check", "run7"}), 0) << Err();
  EXPECT_THAT(Out(), AllOf(HasSubstr("run7/3: 2 tensors, "), HasSubstr("2 objects, checked in "),
                           HasSubstr(" s: all good\n")));
  world_.corrupt = true;
  EXPECT_EQ(Cairn({"weights", "check", "run7"}), 4);
  EXPECT_THAT(Out(), AllOf(HasSubstr("object \"a.safetensors\": block 0 of 1 does not match"),
                           HasSubstr("object \"b.safetensors\": block 0 of 1 does not match")));
  world_.corrupt = false;
  world_.jobs["run7"][3]["b.safetensors"] = "nonsense";
  EXPECT_EQ(Cairn({"weights", "check", "run7", "-o", "json"}), 4);
  EXPECT_EQ(OutJson()["wrong"].size(), 2u);
}

TEST_F(CommandsTest, WeightsRefusesWhatIsNoStepOfTensors) {
  world_.jobs["run7"][3] = {{"notes.txt", "x"}};
  for (const std::string command : {"ls", "check", "get"}) {
    const auto with = [&](const std::string& path) {
      std::vector<std::string> all = {"weights", command, path};
      if (command == "get") all.push_back(directory_ / "out");
      return Cairn(all);
    };
    EXPECT_EQ(with("run7/3/notes.txt"), 2);
    EXPECT_TRUE(world_.connections.empty());
    EXPECT_EQ(with("run7/3"), 2);
    EXPECT_THAT(Err(), HasSubstr("none of its objects is of kind safetensors"));
    EXPECT_EQ(with("run8"), 3);
    world_.connections.clear();
  }
  EXPECT_EQ(Cairn({"weights", "get", "run7", "-"}), 2);
  EXPECT_EQ(Cairn({"weights", "get", "run7", directory_}), 2);
  EXPECT_EQ(Cairn({"weights", "get", "run7"}), 2);
  EXPECT_EQ(Cairn({"weights"}), 2);
  EXPECT_TRUE(world_.connections.empty());
  EXPECT_FALSE(std::filesystem::exists(directory_ / "out"));
}

}  // namespace
}  // namespace cairn::cli
