// One client's connection, on its user's loop. It reads a message at a time, hands it over, and reads
// the next when the reply has left. A connection that waits, for its client or for the node, holds no
// thread and no buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fd.h"
#include "server/node/user_loops.h"
#include "server/rpc/byte_budget.h"

namespace cairn::rpc {

struct ConnectionOptions {
  // Of a message; before hello, of one that says little.
  uint32_t max_message_bytes = 64 << 20;
  uint32_t max_first_message_bytes = 64 << 10;
  // How long one read or write inside a message may take, and a client may be silent before hello. All of
  // a message or reply may take ten times that.
  int stall_timeout_ms = 30'000;
};

struct Credentials {
  uint32_t uid = 0, gid = 0;
  int32_t pid = 0;
};

// Used on its loop's thread alone, but for what is marked.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // What a connection belongs to. Called on the loop's thread; they may close it.
  struct Owner {
    // A message, without its header; valid until it returns. Each is followed by Send or Close.
    std::function<void(Connection*, absl::string_view message)> receive;
    // A message of `length` bytes, more than the limit, has come and was dropped; `begin` is what it began
    // with. As after `receive`, Send or Close follows.
    std::function<void(Connection*, absl::string_view begin, uint32_t length)> receive_too_long;
    std::function<void(Connection*)> closed;  // at most once, last; a call may still be waited for
  };

  // `budget` outlives it: what messages of more than kSmallMessage take before they are answered.
  Connection(UniqueFd socket, const Credentials& credentials, const ConnectionOptions& options,
             std::shared_ptr<node::EventLoop> loop, ByteBudget* budget, Owner owner);

  static constexpr uint32_t kSmallMessage = 64 << 10;
  // Of a message that is dropped: more than its header and the name of any call.
  static constexpr size_t kBeginBytes = 256;

  // Immutable; thread-safe.
  const Credentials& credentials() const { return credentials_; }
  const std::shared_ptr<node::EventLoop>& loop() const { return loop_; }
  uint32_t max_message_bytes() const { return options_.max_message_bytes; }

  void Start();
  // A session speaks here: messages may be long, and silence between them is allowed.
  void SetGreeted(bool greeted);
  // The reply to the message that was received last, with its header.
  void Send(absl::string_view reply);
  // Calls back once the message that is being answered may hold so many bytes more, unless it closes first.
  void WhenRoom(uint64_t bytes, std::function<void()> then);
  // What the bytes of this message, and of its reply, are charged to; never null.
  const std::shared_ptr<Reservation>& reservation() const { return reserved_; }
  // Nothing more is read; once the reply has left it closes.
  void CloseAfterReply() { last_ = true; }
  void Close();
  bool open() const { return socket_.valid(); }

 private:
  void OnEvents(uint32_t events);
  void Read();
  // Bytes of messages, as they came.
  void Take(absl::string_view bytes);
  // Hands over the message that `bytes` begins with, if all of it is there, and removes it.
  bool TakeMessage(absl::string_view* bytes);
  // What becomes of a message of `length` bytes.
  enum class Fate { kTaken, kDropped, kCut };
  Fate FateOf(uint32_t length) const;
  void Cut(uint32_t length);
  // Drops what `bytes` has of the message that is too long; true once that was its end, and it is handed over.
  bool Drop(absl::string_view* bytes);
  void ReadOn();
  void Flush();
  void Sent();
  void Arm();
  void BeginNext();
  void ForgetReservation();
  bool HasRoom();  // for the message that has begun
  void AskForRoom();
  void Log(absl::string_view what) const;
  uint32_t wanted()
      const;  // bytes of the message that has begun, with its header; 0: not known yet

  const Credentials credentials_;
  const ConnectionOptions options_;
  const std::shared_ptr<node::EventLoop> loop_;
  ByteBudget* const budget_;
  const Owner owner_;
  UniqueFd socket_;
  node::EventLoop::Watch watch_ = 0;
  uint32_t interest_ = 0;
  bool greeted_ = false;
  bool busy_ = false;    // a message has been handed over, and its reply has not left
  bool inside_ = false;  // Take is at work
  bool waits_for_budget_ = false;
  uint64_t room_ = 0;           // that the answer waits for, before …
  std::function<void()> then_;  // … it goes on
  bool last_ = false;
  std::shared_ptr<Reservation> reserved_;
  std::string in_;  // of a message that has begun
  struct TooLong {
    uint32_t length = 0;
    uint32_t left = 0;  // bytes that are still to come
    std::string begin;
  };
  std::optional<TooLong> too_long_;  // has begun; nothing of it is kept but this
  MonotonicNanos begun_ = 0;         // when the message or reply that is under way began
  std::string out_;                  // of a reply that the client does not take
  size_t out_begin_ = 0;             // what of it has left
};

}  // namespace cairn::rpc
