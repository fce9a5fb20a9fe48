/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Sequence locks in map values.
 *
 * The kernel's bpf_spin_lock turns interrupts off and on, which takes longer than what is done in between (45 ns each).
 * That is not needed here: tc programs run with bottom halves off, so whoever holds a lock is on another CPU. A reader
 * in user space has a whole copy where the sequence is even, and the same before and after.
 */
#ifndef DINNET_LOCK_H
#define DINNET_LOCK_H

#include <bpf/bpf_helpers.h>

#define TRIES (1 << 16) /* some milliseconds; a holder that takes longer has lost its CPU */

struct attempt {
	__u32 *sequence;
	__u32 next; /* what to give the lock back with */
	__u32 taken;
};

static __always_inline int try_take(struct attempt *attempt)
{
	__u32 now = *(volatile __u32 *)attempt->sequence;

	if (now & 1 || __sync_val_compare_and_swap(attempt->sequence, now, now + 1) != now)
		return 0;
	attempt->next = now + 2;
	attempt->taken = 1;
	return 1;
}

static long take_in_loop(__u32 number, void *attempt)
{
	return try_take(attempt);
}

/* Whether the lock was taken. */
static __always_inline int take(struct attempt *attempt)
{
	if (!try_take(attempt))
		bpf_loop(TRIES, take_in_loop, attempt, 0);
	return attempt->taken;
}

/* A value, not a step: user space may have written to the lock with the rest of the value. */
static __always_inline void give_back(struct attempt *attempt)
{
	__sync_lock_test_and_set(attempt->sequence, attempt->next);
}

#endif
