// What libcairn reads from a daemon that lies: on the Thrift socket frames, halves and bytes of any kind, answers
// that say anything; on the fd socket packets that say anything, with descriptors of any kind and number. Each call
// ends with a status or an answer, in a bounded time; what was mapped can be touched; and once the session is gone
// there is not one descriptor more than before it.
//
// An input is a byte of options, the calls that libcairn gets, then what the daemon says to each request in
// turn. When that is at its end the daemon refuses each further call, as it should, or says all of it again.
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/session.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/lying_daemon.h"

namespace cairn::testing {
namespace {

using client::Session;

constexpr absl::Duration kTimeout = absl::Milliseconds(4);
// Of what a test calls: it may be several calls of the daemon's, and `wait` has a second of its own.
constexpr absl::Duration kTooLong = absl::Seconds(4);
constexpr size_t kMaxCalls = 3;

// --- libcairn's calls

// What `call` returns; a finding when that takes longer than it may.
template <typename F>
auto InTime(const char* what, F call) {
  const absl::Time begin = absl::Now();
  auto out = call();
  const absl::Duration took = absl::Now() - begin;
  if (took > kTooLong) Finding(absl::StrCat(what, " took ", absl::FormatDuration(took)));
  return out;
}

void Touch(const char* data, uint64_t length) {
  if (length == 0) return;
  volatile char byte = data[0];
  byte = data[length / 2];
  byte = data[length - 1];
  (void)byte;
}

void Load(Session* session, uint8_t how) {
  const auto mode = static_cast<OpenMode>(1 + how % 3);
  const auto object = InTime("open", [&] { return session->Open({}, "object", mode); });
  if (!object.ok()) return;
  const uint64_t length = (*object)->info().length;
  switch (how / 3 % 5) {
    case 0: {
      if (length > 2 * kSlabBytes) return;  // a caller would ask for so much memory
      std::string into(length, '\0');
      (void)InTime("read", [&] { return (*object)->ReadInto(into.data()); });
      return;
    }
    case 1: {
      const auto view = InTime("map", [&] { return (*object)->Map(); });
      if (view.ok()) Touch(view->data, view->length);
      return;
    }
    case 2:
      (void)InTime("path", [&] { return (*object)->Path(); });
      return;
    case 3:
      (void)InTime("verify", [&] { return (*object)->Verify(); });
      return;
    case 4: {
      std::string into(100, '\0');
      (void)InTime("range", [&] { return (*object)->ReadRange(length / 2, 100, into.data()); });
      const int64_t shape[] = {10}, from[] = {static_cast<int64_t>(length / 20)}, to[] = {10};
      (void)InTime("pieces", [&] {
        return (*object)->ReadPieces({{length / 2, 10, shape, from, into.data(), to},
                                      {length - 1, 1, {}, {}, into.data(), {}}});
      });
      (void)InTime("peek", [&] { return (*object)->PeekRanges({{length / 2, 100}}, into.data()); });
      return;
    }
  }
}

void Save(Session* session, uint8_t how) {
  static const std::string bytes(kSlabBytes, 'b');
  const auto step = session->BeginStep(how);
  if (!step.ok()) return;
  const client::Source some = {bytes.data(), bytes.size() >> (how % 8)};
  Status written = InTime("write", [&]() -> Status {
    switch (how / 8 % 3) {
      case 0:
        return (*step)->Write("object", ObjectKind::kRaw, {some});
      case 1:
        return (*step)->WriteMany({{"a", ObjectKind::kRaw, {some}},
                                   {"b", ObjectKind::kRaw, {}},
                                   {"c", ObjectKind::kRaw, {some, some}}});
      default: {
        const auto plan = ZipPlan::Make({{.name = "record", .length = some.length}});
        if (!plan.ok()) return plan.status();
        return (*step)->WriteZip("zip", ObjectKind::kTorch, *plan, {some});
      }
    }
  });
  if ((how & 128) != 0) {
    (void)InTime("abort", [&] { return (*step)->Abort(); });
  } else {
    (void)InTime("commit", [&] { return (*step)->Commit({}); });
  }
}

void Ask(Session* session, uint8_t what) {
  const CheckpointRef ref;
  (void)InTime("a question", [&]() -> Status {
    switch (what % 14) {
      case 0:
        return session->Latest().status();
      case 1:
        return session->Resume(3).status();
      case 2:
        return session->Use(ref, false).status();
      case 3:
        return session->Stat(ref).status();
      case 4:
        return session->StatObject(ref, "object").status();
      case 5:
        return session->List("job").status();
      case 6:
        return session->Wait(ref, Level::kCached, kTimeout).status();
      case 7:
        return session->WaitAfter(3, kTimeout).status();
      case 8:
        return session->PreviewPolicy("", JobPolicy()).status();
      case 9:
        return session->StatusJson().status();
      case 10:
        return session->ChooseAttempt().status();
      case 11:
        return session->Remove(ref, true, false);
      case 12:
        return session->IndexJson("", 9, kTimeout).status();
      default:
        return session->SetPolicy(JobPolicy());
    }
  });
}

void Play(FuzzInput input) {
  static const Sockets sockets;
  static Lent lent;
  lent.Clear();
  const size_t descriptors =
      OpenDescriptors();  // libFuzzer may have opened some since the last input
  const uint8_t options = input.Byte();
  struct Call {
    uint8_t what = 0, how = 0;
  };
  std::vector<Call> calls(1 + input.Byte() % kMaxCalls);
  for (Call& call : calls) call = {input.Byte(), input.Byte()};
  {
    const LyingDaemon daemon(&sockets, &lent, options, input);
    client::ConnectOptions connect;
    connect.socket = sockets.folder.Path("cairn.sock");
    connect.job = "job";
    connect.attempt = 7;
    connect.writer = 0;
    connect.world_size = 1;
    connect.takes_fds = (options & kTakesFds) != 0;
    connect.copy_threads = (options & kTwoCopyThreads) != 0 ? 2 : 1;
    connect.timeout = kTimeout;
    auto session = InTime("connect", [&] { return Session::Connect(connect); });
    if (session.ok()) {
      for (const Call& call : calls) {
        if (call.what % 3 == 0) Load(session->get(), call.how);
        if (call.what % 3 == 1) Save(session->get(), call.how);
        if (call.what % 3 == 2) Ask(session->get(), call.how);
      }
      InTime("close", [&] { return (*session)->Close(), 0; });
    }
  }
  AwaitCalm("descriptors", [&] { return OpenDescriptors() == descriptors; });
}

}  // namespace
}  // namespace cairn::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::testing::Play(cairn::testing::FuzzInput(data, size));
  return 0;
}
