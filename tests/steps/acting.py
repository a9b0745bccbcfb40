"""Reinforcement learning: policies, values, replayed memories."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.optim import SGD, Adam, RMSprop

from tests.steps.data import ROWS, D, K, drawn, mlp, one_number
from tests.steps.loops import backward, by_hand, learner, updated
from tests.steps.registry import Loop, step


def acted(index: int) -> tuple[Tensor, Tensor, Tensor]:
    """States, actions, and what they brought."""
    g = drawn(index)
    return (
        torch.randn(ROWS, D, generator=g),
        torch.randint(K, (ROWS,), generator=g),
        torch.randn(ROWS, generator=g),
    )


def moved(index: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same, with the states after it and whether it was the end."""
    g = drawn(1000 + index)
    states, actions, rewards = acted(index)
    return (states, actions, rewards, torch.randn(ROWS, D, generator=g),
            torch.rand(ROWS, generator=g) > 0.7)  # fmt: skip


@learner(Adam, batch=acted, lr=0.01)
def a_policy_gradient(policy, optimizer, states, actions, returns) -> Tensor:
    chances = Categorical(logits=policy(states), validate_args=False)
    return updated(
        optimizer,
        -(chances.log_prob(actions) * returns).mean() - 0.01 * chances.entropy().mean(),
    )


@learner(Adam, batch=acted, lr=0.01)
def a_policy_gradient_with_validated_arguments(
    policy, optimizer, states, actions, returns
) -> Tensor:
    chances = Categorical(logits=policy(states))
    return updated(optimizer, -(chances.log_prob(actions) * returns).mean())


@step()
def actions_are_drawn_in_the_step() -> Loop:
    policy, world = mlp(), torch.randn(D, K)
    optimizer = RMSprop(policy.parameters(), lr=0.01)

    def train(states: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        chances = Categorical(logits=policy(states), validate_args=False)
        actions = chances.sample()
        rewards = (states @ world).gather(1, actions[:, None])[:, 0]
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        updated(optimizer, -(chances.log_prob(actions) * advantage).sum())
        return actions, rewards.mean()

    return Loop(train, acted, policy=policy, optimizer=optimizer)


@step()
def an_episode_of_five_moves() -> Loop:
    """REINFORCE over a rollout in Python, with discounted returns."""
    policy, world = mlp(given=3, out=2), torch.randn(5, 3) * 0.3
    optimizer = Adam(policy.parameters(), lr=0.01)

    def train(start: Tensor) -> Tensor:
        state, chances, rewards = start, [], []
        for _ in range(5):
            found = Categorical(logits=policy(state), validate_args=False)
            action = found.sample()
            chances.append(found.log_prob(action))
            state = torch.tanh(torch.cat([state, F.one_hot(action, 2)]) @ world)
            rewards.append(state[0])
        total, returns = torch.zeros(()), []
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        aims = torch.stack(returns).detach()
        return updated(optimizer, -(torch.stack(chances) * (aims - aims.mean())).sum())

    return Loop(train, lambda i: (torch.randn(3, generator=drawn(i)),), policy=policy,
                optimizer=optimizer)  # fmt: skip


@step()
def an_actor_and_a_critic() -> Loop:
    actor, critic = mlp(), mlp(out=1)
    optimizer = Adam([*actor.parameters(), *critic.parameters()], lr=0.01)

    def train(s: Tensor, a: Tensor, r: Tensor, after: Tensor, done: Tensor) -> Tensor:
        value = critic(s)[:, 0]
        with torch.no_grad():
            aim = r + 0.9 * critic(after)[:, 0] * ~done
        advantage = (aim - value).detach()
        chosen = F.log_softmax(actor(s), -1).gather(1, a[:, None])[:, 0]
        loss = backward(optimizer, -(chosen * advantage).mean() + 0.5 * F.mse_loss(value, aim))
        nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
        optimizer.step()
        return loss.detach()

    return Loop(train, moved, actor=actor, critic=critic, optimizer=optimizer)


@learner(Adam, batch=acted, lr=0.01)
def proximal_policy_in_epochs(actor, optimizer, s, a, advantage) -> Tensor:
    with torch.no_grad():
        old = F.log_softmax(actor(s), -1).gather(1, a[:, None])[:, 0]
    for _ in range(3):
        order = torch.randperm(len(s))
        for rows in order.split(4):
            new = F.log_softmax(actor(s[rows]), -1).gather(1, a[rows, None])[:, 0]
            ratio = torch.exp(new - old[rows])
            kept = torch.clamp(ratio, 0.8, 1.2)
            loss = updated(
                optimizer, -torch.min(ratio * advantage[rows], kept * advantage[rows]).mean()
            )
    return loss.detach()


@step()
def q_learning_with_a_target_network() -> Loop:
    class Agent:
        def __init__(self) -> None:
            self.q = mlp()
            self.target = copy.deepcopy(self.q).eval()
            self.optimizer = RMSprop(self.q.parameters(), lr=0.01)
            self.steps = 0

        def learn(self, s: Tensor, a: Tensor, r: Tensor, after: Tensor, done: Tensor) -> float:
            found = self.q(s).gather(1, a[:, None])[:, 0]
            with torch.no_grad():
                aim = r + 0.9 * self.target(after).max(1).values * (~done).float()
            loss = updated(self.optimizer, F.smooth_l1_loss(found, aim))
            self.steps += 1
            if self.steps % 3 == 0:
                self.target.load_state_dict(self.q.state_dict())
            return loss.item()

    agent = Agent()
    return Loop(agent.learn, moved, agent=agent)


@step()
def double_q_learning_with_soft_updates() -> Loop:
    q = mlp()
    target = copy.deepcopy(q)
    optimizer = Adam(q.parameters(), lr=0.01)

    def train(s: Tensor, a: Tensor, r: Tensor, after: Tensor, done: Tensor) -> Tensor:
        best = q(after).argmax(1, keepdim=True)
        aim = r + 0.9 * target(after).gather(1, best)[:, 0].detach() * done.logical_not()
        loss = updated(optimizer, F.huber_loss(q(s).gather(1, a[:, None])[:, 0], aim))
        for kept, p in zip(target.parameters(), q.parameters(), strict=True):
            kept.data.copy_(0.05 * p.data + 0.95 * kept.data)
        return loss.detach()

    return Loop(train, moved, q=q, target=target, optimizer=optimizer)


@step()
def soft_actor_critic_with_a_learned_temperature() -> Loop:
    actor, critic = mlp(out=4), mlp(given=D + 2, out=1)
    log_alpha = nn.Parameter(torch.zeros(()))
    of_actor, of_critic = Adam(actor.parameters(), 0.01), Adam(critic.parameters(), 0.01)
    of_alpha = SGD([log_alpha], lr=0.05)

    def act(s: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = actor(s).chunk(2, -1)
        found = Normal(mean, scale.clamp(-3, 1).exp(), validate_args=False)
        raw = found.rsample()
        action = torch.tanh(raw)
        log = found.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log.sum(-1, keepdim=True)

    def train(s: Tensor, a: Tensor, r: Tensor, after: Tensor, done: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            new, log = act(after)
            soft = critic(torch.cat([after, new], -1)) - log_alpha.exp() * log
            aim = r[:, None] + 0.9 * soft
        given = torch.stack([a.float(), -a.float()], -1)
        lost = updated(of_critic, F.mse_loss(critic(torch.cat([s, given], -1)), aim))

        action, log = act(s)
        acting = updated(
            of_actor, (log_alpha.exp().detach() * log - critic(torch.cat([s, action], -1))).mean()
        )

        warmth = updated(of_alpha, -(log_alpha * (log.detach() - 2)).mean())
        return lost.detach(), acting.detach(), warmth.detach()

    return Loop(
        train, moved, actor=actor, critic=critic, log_alpha=log_alpha, of_actor=of_actor,
        of_critic=of_critic, of_alpha=of_alpha,
    )  # fmt: skip


@by_hand(model=one_number, batch=acted)
def evolution_without_a_gradient(model, s, a, r) -> Tensor:
    with torch.no_grad():
        total = torch.zeros(())
        for p in model.parameters():
            noise = torch.randn_like(p)
            p.add_(0.01 * noise)
            up = F.mse_loss(model(s)[:, 0], r)
            p.sub_(0.02 * noise)
            down = F.mse_loss(model(s)[:, 0], r)
            p.add_(0.01 * noise)
            p.sub_(0.5 * (up - down) * noise)
            total += up
    return total
