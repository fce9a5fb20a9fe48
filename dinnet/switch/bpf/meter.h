/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Two-rate three-colour markers (RFC 2698). */
#ifndef DINNET_METER_H
#define DINNET_METER_H

#include "lock.h"
#include "parse.h"

#define NANO 1000000000ULL

static __always_inline void refill(struct token_bucket *bucket, __u64 elapsed_ns)
{
	if (elapsed_ns >= bucket->fill_ns) {
		bucket->tokens = bucket->burst;
		return;
	}
	/* Below fill_ns the product is below burst, which fits. */
	__u64 tokens = bucket->tokens + elapsed_ns * bucket->rate;

	bucket->tokens = tokens < bucket->burst ? tokens : bucket->burst;
}

static __always_inline enum colour run_meter(struct meter *meter, struct packet *p)
{
	__u64 cost = p->frame_bytes * NANO;
	enum colour colour = GREEN;
	struct attempt attempt = {&meter->sequence};

	if (!meter->configured || !take(&attempt))
		return GREEN;
	if (p->now_ns > meter->last_ns) {
		__u64 elapsed_ns = p->now_ns - meter->last_ns;

		refill(&meter->peak, elapsed_ns);
		refill(&meter->committed, elapsed_ns);
		meter->last_ns = p->now_ns;
	}
	if (meter->peak.tokens < cost) {
		colour = RED;
	} else {
		meter->peak.tokens -= cost;
		if (meter->committed.tokens < cost)
			colour = YELLOW;
		else
			meter->committed.tokens -= cost;
	}
	give_back(&attempt);
	return colour;
}

#endif
