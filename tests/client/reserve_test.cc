// Objects that their callers fill in place, against the real daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/session.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/patience.h"

namespace cairn::client {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Buffer = StepWriter::Buffer;

constexpr uint64_t kMiB = 1 << 20;

#define ASSERT_OK(expression)             \
  do {                                    \
    const Status status_ = (expression);  \
    ASSERT_TRUE(status_.ok()) << status_; \
  } while (false)

// Bytes that differ from page to page, and from seed to seed.
std::string Bytes(uint64_t length, int seed) {
  std::string out(length, static_cast<char>('a' + seed));
  for (uint64_t at = 0; at + 8 <= length; at += 4096) {
    const uint64_t word = at * 1000003 + static_cast<uint64_t>(seed);
    std::memcpy(out.data() + at, &word, 8);
  }
  return out;
}

class ReserveTest : public ::testing::Test {
 protected:
  void SetUp() override { StartDaemon({}); }
  void StartDaemon(const testing::DaemonOptions& options) {
    auto started = testing::Daemon::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
    Connect();
  }
  // One job per test: revisions are counted for the life of the process, not of a daemon.
  void Connect() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string job = absl::StrCat(test->name());
    for (char& c : job) c = c == '/' ? '.' : c;
    ConnectOptions options = daemon_->Client(job);
    options.takes_fds = takes_fds();
    auto session = Session::Connect(options);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
  }
  virtual bool takes_fds() const { return true; }

  std::unique_ptr<StepWriter> Begin(Step step, absl::Duration timeout = absl::ZeroDuration()) {
    auto writer = session_->BeginStep(step, {}, timeout);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  static Buffer Reserve(StepWriter* writer, const std::string& name, uint64_t length) {
    auto buffer = writer->Reserve(name, ObjectKind::kRaw, length);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : Buffer{};
  }
  static void Fill(const Buffer& buffer, const std::string& bytes) {
    ASSERT_EQ(buffer.length, bytes.size());
    if (!bytes.empty()) std::memcpy(buffer.data, bytes.data(), bytes.size());
  }
  // As loaded, every block verified.
  std::string Load(Step step, const std::string& name, OpenMode mode = OpenMode::kRead) {
    CheckpointRef ref;
    ref.step = step;
    auto object = session_->Open(ref, name, mode);
    EXPECT_TRUE(object.ok()) << object.status();
    if (!object.ok()) return "";
    std::string out((*object)->info().length, '\0');
    const Status read = (*object)->ReadInto(out.data());
    EXPECT_TRUE(read.ok()) << read;
    return out;
  }

  std::unique_ptr<testing::Daemon> daemon_;
  std::shared_ptr<Session> session_;
};

// With descriptors, and in chunks.
class ReserveBothWays : public ReserveTest, public ::testing::WithParamInterface<bool> {
  bool takes_fds() const override { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(, ReserveBothWays, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Descriptors" : "Chunks"; });

// Promise 2, for sizes about every border there is.
TEST_P(ReserveBothWays, WhatIsFilledIsWhatIsLoaded) {
  const std::vector<uint64_t> sizes = {
      0, 1, 4095, 4096, 4097, kMiB - 1, kMiB + 1, kBlockBytes, 5 * kMiB, 9 * kMiB + 3, 33 * kMiB};
  for (Step step : {1, 2}) {  // the second one in the slabs and the mappings of no other
    auto writer = Begin(step);
    std::vector<Buffer> buffers;
    for (size_t i = 0; i < sizes.size(); ++i) {
      buffers.push_back(Reserve(writer.get(), absl::StrCat("o", i), sizes[i]));
      Fill(buffers[i], Bytes(sizes[i], static_cast<int>(step + i)));
      if (i % 3 == 0) ASSERT_OK(writer->Seal(absl::StrCat("o", i)));
    }
    const std::string copied = "copied";
    const Source source = {copied.data(), copied.size()};
    ASSERT_OK(writer->Write("copied", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
    const auto committed = writer->Commit({});
    ASSERT_TRUE(committed.ok()) << committed.status();
    EXPECT_TRUE(committed->complete);
    uint64_t total = copied.size();
    for (uint64_t size : sizes) total += size;
    EXPECT_EQ(writer->bytes_written(), total);
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (OpenMode mode : {OpenMode::kRead, OpenMode::kMap, OpenMode::kFile}) {
        EXPECT_TRUE(Load(step, absl::StrCat("o", i), mode) ==
                    Bytes(sizes[i], static_cast<int>(step + i)))
            << "object of " << sizes[i] << " bytes in step " << step;
      }
    }
    EXPECT_EQ(Load(step, "copied"), copied);
  }
}

TEST_P(ReserveBothWays, OthersAreFilledWhileOneIsSealed) {
  auto writer = Begin(1);
  const Buffer a = Reserve(writer.get(), "a", 9 * kMiB), b = Reserve(writer.get(), "b", 9 * kMiB);
  Fill(a, Bytes(9 * kMiB, 1));
  std::thread filling([&] { Fill(b, Bytes(9 * kMiB, 2)); });
  ASSERT_OK(writer->Seal("a"));
  filling.join();
  ASSERT_OK(writer->Commit({}).status());
  EXPECT_TRUE(Load(1, "a") == Bytes(9 * kMiB, 1));
  EXPECT_TRUE(Load(1, "b") == Bytes(9 * kMiB, 2));
}

TEST_P(ReserveBothWays, WhatIsWrittenAfterTheSealIsLost) {
  Buffer held[4];
  for (Step step = 1; step <= 3; ++step) {  // the slab of the first one holds a later one
    auto writer = Begin(step);
    held[step] = Reserve(writer.get(), "a", 5 * kMiB);
    Fill(held[step], Bytes(5 * kMiB, static_cast<int>(step)));
    std::atomic<bool> done{false};
    std::vector<std::thread> late;  // some of them have never stopped
    for (Step i = 1; i < step; ++i) {
      late.emplace_back([&, buffer = held[i]] {
        while (!done) Fill(buffer, std::string(5 * kMiB, 'z'));
      });
    }
    ASSERT_OK(writer->Seal("a"));
    Fill(held[step], std::string(5 * kMiB, 'y'));
    ASSERT_OK(writer->Commit({}).status());
    Fill(held[step], std::string(5 * kMiB, 'x'));
    EXPECT_TRUE(Load(step, "a") == Bytes(5 * kMiB, static_cast<int>(step))) << step;
    done = true;
    for (std::thread& thread : late) thread.join();
  }
}

TEST_F(ReserveTest, OneThatIsStillWrittenDuringTheCommitMatchesItsChecksums) {
  auto writer = Begin(1);
  const Buffer buffer = Reserve(writer.get(), "a", 9 * kMiB);
  std::atomic<bool> done{false};
  std::thread late([&] {
    for (char c = 'a'; !done; c = c == 'z' ? 'a' : static_cast<char>(c + 1)) {
      std::memset(buffer.data, c, buffer.length);
    }
  });
  const auto committed = writer->Commit({});
  Load(1, "a");  // verified
  done = true;
  late.join();
  ASSERT_TRUE(committed.ok()) << committed.status();
}

TEST_P(ReserveBothWays, MistakesAreNamed) {
  auto writer = Begin(1);
  Reserve(writer.get(), "a", 10);
  const auto refused = [](const Status& status, absl::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  using absl::StatusCode;
  const auto reserve = [&](const std::string& name, uint64_t length) {
    return writer->Reserve(name, ObjectKind::kRaw, length).status();
  };
  refused(reserve("a", 10), StatusCode::kAlreadyExists, "name: a is already in step 1");
  refused(reserve("../a", 10), StatusCode::kInvalidArgument, "name");
  refused(reserve("b", kMaxObjectBytes + 1), StatusCode::kInvalidArgument, "length: more than");
  const Source source = {"x", 1};
  refused(writer->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)),
          StatusCode::kAlreadyExists, "name: a is already in step 1");
  refused(writer->Seal("b"), StatusCode::kInvalidArgument, "name: b is not reserved in step 1");
  ASSERT_OK(writer->Write("b", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  refused(writer->Seal("b"), StatusCode::kInvalidArgument, "name: b is not reserved in step 1");
  ASSERT_OK(writer->Seal("a"));
  refused(writer->Seal("a"), StatusCode::kInvalidArgument, "or sealed");
  ASSERT_OK(writer->Commit({}).status());
  refused(reserve("c", 10), StatusCode::kFailedPrecondition, "committed or aborted");
  refused(writer->Seal("a"), StatusCode::kFailedPrecondition, "committed or aborted");
}

TEST_P(ReserveBothWays, ThereIsNoRoom) {
  auto writer = Begin(1, absl::Seconds(5));
  const Status full = writer->Reserve("a", ObjectKind::kRaw, 640 * kMiB).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  writer = Begin(2);
  Fill(Reserve(writer.get(), "a", kMiB), Bytes(kMiB, 1));
  ASSERT_OK(writer->Commit({}).status());
  EXPECT_TRUE(Load(2, "a") == Bytes(kMiB, 1));
}

TEST_P(ReserveBothWays, AnAbortOrAForgottenStepTakesTheMemoryBack) {
  for (Step step : {1, 2, 3}) {
    auto writer = Begin(step);
    const Buffer buffer = Reserve(writer.get(), "a", 5 * kMiB);
    Fill(buffer, Bytes(5 * kMiB, 1));
    if (step == 1) ASSERT_OK(writer->Abort());
    if (step == 2) writer.reset();
    if (step == 3) session_->Close();
    Fill(buffer, Bytes(5 * kMiB, 2));  // may be touched
    if (step == 3) {
      EXPECT_EQ(writer->Commit({}).status().code(), absl::StatusCode::kFailedPrecondition);
      Connect();
    }
    writer = Begin(10 + step);
    Fill(Reserve(writer.get(), "a", 5 * kMiB), Bytes(5 * kMiB, 3));
    ASSERT_OK(writer->Commit({}).status());
    Fill(buffer, Bytes(5 * kMiB, 4));
    EXPECT_TRUE(Load(10 + step, "a") == Bytes(5 * kMiB, 3));
    const auto status = daemon_->StatusJson();
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(Json::parse(*status)["writing_bytes"], 0);
  }
}

// As of what was written: AStepInFlightGoesOnAfterTheDaemonWasKilled in session_test.cc.
TEST_F(ReserveTest, TheDaemonIsKilledWhileItIsFilled) {
  auto writer = Begin(1);
  const Buffer a = Reserve(writer.get(), "a", 5 * kMiB);
  Fill(a, Bytes(5 * kMiB, 1));
  ASSERT_OK(daemon_->KillDaemon());
  const Buffer b = Reserve(writer.get(), "b", 5 * kMiB);
  ASSERT_OK(writer->Seal("a"));
  ASSERT_OK(daemon_->KillDaemon());
  Fill(b, Bytes(5 * kMiB, 2));
  ASSERT_OK(writer->Commit({}).status());
  EXPECT_TRUE(Load(1, "a") == Bytes(5 * kMiB, 1));
  EXPECT_TRUE(Load(1, "b") == Bytes(5 * kMiB, 2));
}

TEST_P(ReserveBothWays, ANodeThatForgotEverythingIsUnavailableForTheStepAndFineForTheNext) {
  auto writer = Begin(1);
  const Buffer buffer = Reserve(writer.get(), "a", 5 * kMiB);
  ASSERT_OK(daemon_->KillEverything());
  Fill(buffer, Bytes(5 * kMiB, 1));
  ASSERT_OK(daemon_->StartAgain());
  const Status lost = writer->Commit({}).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("begin the step again"));
  Fill(buffer, Bytes(5 * kMiB, 1));
  writer = Begin(2);
  Fill(Reserve(writer.get(), "a", 5 * kMiB), Bytes(5 * kMiB, 2));
  ASSERT_OK(writer->Commit({}).status());
  EXPECT_TRUE(Load(2, "a") == Bytes(5 * kMiB, 2));
}

// A buffer that is kept does not keep its slab: the node gets it back when it wants the room.
TEST_F(ReserveTest, OneThatIsKeptHoldsNoRoom) {
  testing::DaemonOptions options;
  options.budget_bytes = 20 * kMiB;  // for two steps
  StartDaemon(options);
  std::vector<Buffer> kept;
  for (Step step = 1; step <= 6; ++step) {
    // Each step of another size, so that no slab of an earlier one fits.
    const uint64_t bytes = (6 + step % 3) * kMiB;
    auto writer = Begin(step, testing::Patient(absl::Seconds(10)));
    kept.push_back(Reserve(writer.get(), "a", bytes));
    Fill(kept.back(), Bytes(bytes, static_cast<int>(step)));
    ASSERT_OK(writer->Commit({}).status());
    for (const Buffer& buffer : kept) std::memset(buffer.data, 'z', buffer.length);
    EXPECT_TRUE(Load(step, "a") == Bytes(bytes, static_cast<int>(step)));
  }
}

// What a device copies goes through a mapping that it keeps.
TEST_F(ReserveTest, ADeviceFillsWhereItHasTheSlabMappedForGood) {
  std::unique_ptr<StandingMapping> standing;
  for (Step step : {1, 2}) {
    auto writer = Begin(step);
    const Buffer buffer = Reserve(writer.get(), "a", 5 * kMiB);
    ASSERT_NE(buffer.place.slab, "");
    auto mapped = buffer.place.map([] {});
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    standing = *std::move(mapped);
    ASSERT_GE(standing->bytes(), buffer.place.offset + buffer.length);
    const std::string bytes = Bytes(5 * kMiB, static_cast<int>(step));
    std::memcpy(standing->data() + buffer.place.offset, bytes.data(), bytes.size());
    ASSERT_OK(writer->Commit({}).status());
    EXPECT_TRUE(Load(step, "a") == bytes);
    standing.reset();
  }
}

TEST_F(ReserveTest, AForkedChildThatDropsItsCopyChangesNothing) {
  auto writer = Begin(1);
  Buffer buffer = Reserve(writer.get(), "a", 5 * kMiB);
  Buffer sealed = Reserve(writer.get(), "b", 5 * kMiB);
  Fill(buffer, Bytes(5 * kMiB, 1));
  Fill(sealed, Bytes(5 * kMiB, 2));
  ASSERT_OK(writer->Seal("b"));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sealed.data[0] = 'x';  // memory of nobody's, here too
    buffer = {};
    sealed = {};
    writer.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ASSERT_OK(writer->Commit({}).status());
  EXPECT_TRUE(Load(1, "a") == Bytes(5 * kMiB, 1));
  EXPECT_TRUE(Load(1, "b") == Bytes(5 * kMiB, 2));
}

}  // namespace
}  // namespace cairn::client
