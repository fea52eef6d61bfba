// The options of the wire between members.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "server/engine/ring.h"
#include "server/tls/peer_tls.h"

namespace cairn::rpc {

using tls::TlsFiles;

struct PeersOptions {
  engine::RingOptions ring;
  std::string data_address;  // of this member's transport, for greetings
  TlsFiles tls;              // none: what travels is plain
  // Without TLS a member listens only where no other host reaches it, unless this says that the network is
  // trusted.
  bool insecure = false;

  MonotonicNanos exchange_interval = kNanosPerSecond;  // when there is nothing to say
  MonotonicNanos connect_timeout = kNanosPerSecond;
  MonotonicNanos call_timeout =
      3 * kNanosPerSecond;  // of an exchange, and of silence inside a message
  // For an exchange with its greeting. Those after which a member counts as lost fit into ring.lost_after_seconds, also
  // where it takes connections and says nothing, as one that stands still.
  MonotonicNanos ExchangeTimeout() const {
    const MonotonicNanos each =
        ring.lost_after_seconds * kNanosPerSecond / engine::kFailedExchanges;
    return std::min(call_timeout, std::max(each, kNanosPerSecond));
  }
  MonotonicNanos back_off_min = 100 * kNanosPerMilli;  // doubled after each failure to …
  MonotonicNanos back_off_max = kNanosPerSecond;

  int max_connections = 256;  // that come in
  // Of them, those of callers that are not known as members yet; the oldest gives way to a newer one.
  int max_strangers = 128;
  MonotonicNanos idle_timeout =
      60 * kNanosPerSecond;  // a connection without calls is closed after it
  // Of a message; the first of one who is not known as a member.
  uint32_t max_message_bytes = 64 << 20;
  uint32_t max_stranger_message_bytes = 64 << 10;
  // What messages of more than max_stranger_message_bytes may take together until they are answered.
  uint64_t max_messages_bytes = 512 << 20;

  // INVALID_ARGUMENT names the option of the daemon.
  Status Validate() const;
};

}  // namespace cairn::rpc
