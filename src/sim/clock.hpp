// SPDX-License-Identifier: Apache-2.0
// Vector clocks: who can know of what, for streams, graph lanes and the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace weir { inline namespace v0 { namespace sim {

/// One party that does things in an order of its own: a stream, a lane of a graph, or the host.
using actor_index = std::uint32_t;
inline constexpr actor_index host_actor = 0;

/// One thing that one actor did: its `tick`-th.
struct stamp {
  actor_index actor = host_actor;
  std::uint64_t tick = 0;
  friend bool operator==(const stamp&, const stamp&) noexcept = default;
};

/// For each actor, up to which tick its actions are known. Immutable once shared: a moment costs
/// one reference, however many actors there are.
using knowledge = std::shared_ptr<const std::vector<std::uint64_t>>;

/// A point in the order of things: one action, and everything that happened before it.
struct moment {
  stamp at{};
  knowledge known{};
  /// What `known` was taken over from, and does not say of itself: this action is known, too.
  stamp source{};
  /// A tick of the host's at which it knew all that is in `known`; 0: there is none.
  std::uint64_t host_knows{};

  /// Whether `other` happened at or before this moment. Since an actor that learns of an action
  /// learns all that the action knew, one comparison decides.
  [[nodiscard]] bool includes(stamp other) const noexcept {
    if (other.actor == at.actor) return other.tick <= at.tick;
    if (other.actor == source.actor && other.tick <= source.tick) return true;
    return known && other.actor < known->size() && (*known)[other.actor] >= other.tick;
  }
};

/// The running clock of one actor. Moves, but is not copied: a copy would write to its twin's list.
class actor_clock {
 public:
  actor_clock() = default;
  actor_clock(actor_clock&&) = default;
  actor_clock& operator=(actor_clock&&) = default;
  explicit actor_clock(actor_index actor, std::uint64_t first_tick = 0)
      : now_{.at = {actor, first_tick}} {}

  [[nodiscard]] const moment& now() const noexcept { return now_; }
  /// Grows with every change: who has seen this version has nothing more to learn.
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

  /// The moment of the next action.
  const moment& tick() noexcept {
    ++now_.at.tick;
    ++version_;
    has_learnt_ = false;
    return now_;
  }

  /// From now on everything up to `other` is known here. Comparing what is known actor by actor is
  /// most of the cost of a machine with many streams. Streams mostly learn from the host, and the
  /// host from them: then one of the two is known to know it all.
  void learn(const moment& other) {
    if (now_.includes(other.at)) return;
    now_.host_knows = 0;
    const bool is_whole = other.known && other.source == stamp{};
    if (is_whole && !has_learnt_ && other.includes(now_.at)) {
      take_over(other);
    } else {
      merge(other);
    }
    has_learnt_ = true;
    ++version_;
  }

 private:
  /// `other` knows all that is known here: its list serves both until one of them learns more.
  void take_over(const moment& other) noexcept {
    own_.reset();
    now_.known = other.known;
    now_.source = other.at;
    // The host ticks after every lesson: who includes a tick of it knows what it knew then.
    if (other.at.actor == host_actor) now_.host_knows = other.at.tick;
  }

  void merge(const moment& other) {
    if (!own_ || own_.use_count() != 2) {  // another moment has the list
      own_ = now_.known ? std::make_shared<std::vector<std::uint64_t>>(*now_.known)
                        : std::make_shared<std::vector<std::uint64_t>>();
      now_.known = own_;
      raise(std::exchange(now_.source, {}));
    }
    raise(other.at);
    if (!other.known) return;
    if (other.host_knows != 0 && now_.includes({host_actor, other.host_knows})) return;
    raise(other.source);
    make_room(other.known->size());
    for (std::size_t i = 0; i < other.known->size(); ++i)
      (*own_)[i] = std::max((*own_)[i], (*other.known)[i]);
  }

  void make_room(std::size_t actors) {
    if (own_->size() < actors) own_->resize(actors, 0);
  }
  void raise(stamp known) {
    make_room(known.actor + std::size_t{1});
    (*own_)[known.actor] = std::max((*own_)[known.actor], known.tick);
  }

  moment now_{};
  std::shared_ptr<std::vector<std::uint64_t>> own_{};  // what now_.known is, unless taken over
  std::uint64_t version_ = 1;
  bool has_learnt_ = false;  // since the last tick: who knows of that need not know the lesson
};

/// Hands out actor numbers. A number is used again only once the host knows of everything its
/// former owner did: whatever the new owner does is queued by the host and so comes after it
/// anyway.
class actor_registry {
 public:
  [[nodiscard]] actor_clock join(const moment& host) {
    for (auto it = retired_.begin(); it != retired_.end(); ++it) {
      if (!host.includes(*it)) continue;
      const stamp last = *it;
      retired_.erase(it);
      return actor_clock{last.actor, last.tick};
    }
    return actor_clock{++count_};
  }
  void leave(const actor_clock& clock) { retired_.push_back(clock.now().at); }

 private:
  actor_index count_ = host_actor;
  std::vector<stamp> retired_;
};

}}}  // namespace weir::v0::sim
